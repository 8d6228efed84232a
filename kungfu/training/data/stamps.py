"""Which batch was cut for what: the step asks, and refuses what was cut for something else."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from kungfu.runtime.deciding.data import Stamp
from kungfu.training.graph.step import UNSTAMPED

__all__ = ["Stamps"]


class Stamps:
    """A batch is known by its tensors; one that was mapped in between, by its turn."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Stamp]] = {}
        self._last: Stamp | None = None

    def put(self, tensors: Sequence[Any], stamp: Stamp) -> None:
        """Remembers what these tensors were cut for, as long as they live."""
        self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}
        for tensor in tensors:
            self._known[id(tensor)] = (weakref.ref(tensor), stamp)
        self._last = stamp

    def of(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """The stamp of a step's arguments; the last one given out if none of them is known."""
        for tensor in tensors:
            reference, stamp = self._known.get(id(tensor), (None, None))
            if reference is not None and stamp is not None and reference() is tensor:
                return _numbers(stamp)
        return UNSTAMPED if self._last is None else _numbers(self._last)


def _numbers(stamp: Stamp) -> tuple[int, ...]:
    return stamp.epoch, stamp.offset, stamp.version, stamp.micro, stamp.micros  # 10 microseconds less than astuple
