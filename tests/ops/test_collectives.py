"""The collectives at the time a policy is written."""

from __future__ import annotations

import pytest

from kungfu.errors import PolicyError
from kungfu.ops import all_gather, all_reduce
from kungfu.signal import TrainingSignals

training = TrainingSignals()


def test_an_unknown_reduction_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=r"all_reduce\(x, 'max'\): .* write \"sum\" or \"mean\""):
        all_reduce(training.loss, "max")  # type: ignore[arg-type]  # what a user might write


def test_gradients_are_not_reduced_a_second_time() -> None:
    with pytest.raises(PolicyError, match=r"use training.mean_grads, or reduce kf.ops.norm_squared\(x\)"):
        all_reduce(training.grads, "mean")


def test_a_vector_of_a_fixed_length_is_reduced_before_it_travels() -> None:
    with pytest.raises(PolicyError, match=r"all_reduce of <local float32\[3\] .* with one entry per peer; reduce it"):
        all_reduce(training.loss.window(3).values, "sum")


def test_a_vector_is_not_gathered() -> None:
    with pytest.raises(PolicyError, match=r"takes one number a peer; reduce it first, as in kf.ops.mean\(x\)"):
        all_gather(all_gather(training.loss))
