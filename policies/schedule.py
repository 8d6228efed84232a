"""A policy that follows a fixed schedule of cluster sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Keep, Rule
    from kungfu.signal import Signal, TrainingSignals


@kf.policy
def schedule(training: TrainingSignals, sizes: Mapping[int, int], *, keep: Keep = "local_batch_size") -> Rule:
    """Changes the number of peers at given steps, ``{step: size}``.

    Every step requests the size of the latest entry reached; before the first entry, nothing is requested. If
    the peers for a size have not joined when the next size is due, the next size replaces it. If a barrier changed the
    cluster at the step of an entry, the request follows in the next step.

    Args:
        training: The signals of a step.
        sizes: Whole numbers: steps from 0 (the first step has the number 1), sizes in peers from 1; the job's limits
            apply as well.
        keep: The batch size that a rescale keeps.

    Raises:
        PolicyError: At `attach`, for an empty table and for invalid numbers.

    Cost:
        No message, 13 bytes of state.

    >>> schedule({100: 4, 300: 2}).name
    'schedule'
    """
    _check(sizes)
    wanted: Signal | float = math.nan
    for step in sorted(sizes):
        wanted = kf.ops.where(training.step >= step, sizes[step], wanted)
    return kf.control.always().rescale(wanted, keep=keep)


def _check(sizes: Mapping[int, int]) -> None:
    if not isinstance(sizes, Mapping) or not sizes:
        raise PolicyError(f"schedule({sizes!r}): takes at least one step: size, e.g. schedule({{100: 4, 300: 2}})")
    for step, size in sizes.items():
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (step, size))
        if not whole or step < 0 or size < 1:
            raise PolicyError(
                f"schedule: {step!r}: {size!r} is no step and size; write whole numbers, step >= 0 and size >= 1"
            )
