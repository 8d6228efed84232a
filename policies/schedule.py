"""Follow a fixed schedule of cluster sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kungfu import control
from kungfu.control import Keep, Rule
from kungfu.errors import PolicyError
from kungfu.ops import where
from kungfu.policy import policy
from kungfu.signal import Signal, TrainingSignals, as_signal

__all__ = ["schedule"]


@policy
def schedule(training: TrainingSignals, sizes: Mapping[int, int], *, keep: Keep = "local_batch_size") -> Rule:
    """From each step of ``{step: size}`` on, that many peers."""
    _validate(sizes)
    wanted: Signal = as_signal(math.nan)
    for step in sorted(sizes):
        wanted = where(training.step >= step, sizes[step], wanted)
    return control.always().rescale(wanted, keep=keep)


def _validate(sizes: Mapping[int, int]) -> None:
    if not isinstance(sizes, Mapping) or not sizes:
        raise PolicyError(f"schedule({sizes!r}): takes at least one {{step: size}}, e.g. schedule({{100: 4, 300: 2}})")
    for step, size in sizes.items():
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (step, size))
        if not whole or step < 0 or size < 1:
            raise PolicyError(
                f"schedule: {step!r}: {size!r} is no step and size; write whole numbers, step >= 0 and size >= 1"
            )
