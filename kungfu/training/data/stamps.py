"""Which batch was cut for what: the step asks, and refuses what was cut for something else."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from kungfu.runtime.deciding.data import Stamp
from kungfu.training.graph.account import Where

__all__ = ["Stamps", "is_stale"]

# A batch that did not come from training.batches is never stale, and all that its peer has for the step.
_UNSTAMPED = Stamp(-1, -1, -1)

_MANY = 64  # tensors, that are looked through for those that are gone


class Stamps:
    """A batch is known by its tensors; one that was mapped in between, by its turn."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Stamp]] = {}
        self._last: Stamp | None = None

    def put(self, tensors: Sequence[Any], stamp: Stamp) -> None:
        """Remembers what these tensors were cut for, as long as they live."""
        if len(self._known) > _MANY:
            self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}
        for tensor in tensors:
            self._known[id(tensor)] = (weakref.ref(tensor), stamp)
        self._last = stamp

    def of(self, tensors: Sequence[Any]) -> Stamp:
        """The stamp of a step's arguments; the last one given out if none of them is known."""
        for tensor in tensors:
            reference, stamp = self._known.get(id(tensor), (None, None))
            if reference is not None and stamp is not None and reference() is tensor:
                return stamp
        return _UNSTAMPED if self._last is None else self._last


def is_stale(stamp: Stamp, here: Where) -> bool:
    """A batch that was cut for another epoch, position or view than the ones in force.

    A micro-batch is the first of its step, or the one behind those that are done.
    """
    in_force = (here.epoch, here.offset, here.version)
    elsewhere = stamp.epoch >= 0 and (stamp.epoch, stamp.offset, stamp.version) != in_force
    return elsewhere or (stamp.micro > 0 and stamp.micro != here.micro)
