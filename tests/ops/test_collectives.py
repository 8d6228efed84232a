"""The collectives at the time a policy is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kungfu.errors import PolicyError
from kungfu.ops import all_gather, all_reduce
from kungfu.signal import TrainingSignals

training = TrainingSignals()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: all_reduce(training.loss, "max"), r"all_reduce\(x, 'max'\): .* write \"sum\" or \"mean\""),
        # The gradients are averaged already.
        (lambda: all_reduce(training.grads, "mean"), r"use training.mean_grads, or reduce kf.ops.norm_squared\(x\)"),
        # A vector of a fixed length is reduced before it is sent, and a vector is not gathered.
        (
            lambda: all_reduce(training.loss.window(3).values, "sum"),
            r"all_reduce of <local float32\[3\] .* with one entry per peer; reduce it",
        ),
        (lambda: all_gather(all_gather(training.loss)), r"takes one number a peer; .* as in kf.ops.mean\(x\)"),
    ],
)
def test_what_cannot_be_reduced_or_gathered_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()
