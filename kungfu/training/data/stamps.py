"""Which batch was cut for what: the step asks, and refuses what was cut for something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kungfu.runtime.api import Stamp
from kungfu.training.graph.step_report import StepPosition

__all__ = ["Stamps", "is_stale"]

# A batch that did not come from training.batches is never stale, and all that its peer has for the step.
_UNSTAMPED = Stamp(-1, -1, -1)
_UNMARKED = (None, _UNSTAMPED)


class Stamps:
    """The stamps of one run. A batch's tensors carry its stamp; one that was mapped since has the last stamp."""

    def __init__(self) -> None:
        self._last: Stamp | None = None

    def put(self, tensors: Sequence[Any], stamp: Stamp) -> None:
        """Remembers what these tensors were cut for, as long as they live."""
        mark = (self, stamp)
        for tensor in tensors:
            tensor._kungfu_stamp = mark
        self._last = stamp

    def of(self, tensors: Sequence[Any]) -> Stamp:
        """The stamp of a step's arguments; the last one given out if none of them has one."""
        for tensor in tensors:
            run, stamp = getattr(tensor, "_kungfu_stamp", _UNMARKED)
            if run is self:
                return stamp
        return _UNSTAMPED if self._last is None else self._last


def is_stale(stamp: Stamp, here: StepPosition) -> bool:
    """A batch that was cut for another epoch, position or view than the ones in force.

    A micro-batch is the first of its step, or the one after those that are done.
    """
    in_force = (here.epoch, here.offset, here.version)
    elsewhere = stamp.epoch >= 0 and (stamp.epoch, stamp.offset, stamp.version) != in_force
    return elsewhere or (stamp.micro > 0 and stamp.micro != here.micro)
