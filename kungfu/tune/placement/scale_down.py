"""Before a scale-down: which nodes to give back, with as few trials moved as possible."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import combinations

from kungfu.errors import UsageError
from kungfu.tune.placement.controller import place
from kungfu.tune.placement.layout import Nodes, Placement, moves, unplaced

__all__ = ["Shrunk", "shrink"]

_CHOICES = 1000
"""Up to so many sets of nodes all are tried; beyond, only the one with the fewest trials on it."""


@dataclass(frozen=True)
class Shrunk:
    """``placement`` leaves the nodes ``released`` empty; ``moved`` are the trials to migrate before they go."""

    placement: Placement
    released: tuple[str, ...]
    moved: tuple[str, ...]


def shrink(placement: Placement, *, nodes: Nodes, keep: int, reserved: Collection[str] = frozenset()) -> Shrunk:
    """Pack the placed trials onto ``keep`` of the nodes, moving as few as possible.

    Up to 1,000 possible sets of released nodes, each is tried and the one with the fewest moves wins (ties: with the
    fewest GPUs moved); beyond that the nodes with the fewest trials are released. A ``reserved`` trial never
    moves.
    Raises: UsageError when ``keep`` is not between 0 and the number of nodes, or no such set of nodes holds all trials.

    >>> from kungfu.tune.placement.layout import Slot
    >>> before = Placement({"A": (Slot("n0", 0),), "B": (Slot("n1", 0),), "C": (Slot("n2", 0), Slot("n2", 1))})
    >>> after = shrink(before, nodes=Nodes(("n0", "n1", "n2"), gpus=4), keep=1)
    >>> after.released, after.moved
    (('n0', 'n1'), ('A', 'B'))

    Misra et al., 2021, section 4.4.
    """
    if not 0 <= keep <= len(nodes.names):
        raise UsageError(f"cannot keep {keep} of {len(nodes.names)} nodes; give a number from 0 to {len(nodes.names)}")
    choices = _choices(placement, nodes=nodes, count=len(nodes.names) - keep)
    tried = (_release(placement, nodes=nodes, released=released, reserved=reserved) for released in choices)
    best = min((each for each in tried if each is not None), key=_burden, default=None)
    if best is None:
        held = sum(len(slots) for slots in placement.slots.values())
        raise UsageError(
            f"{keep} nodes of {nodes.gpus} GPUs do not hold the {len(placement.slots)} trials with their {held} GPUs;"
            " keep more nodes, or end or shrink trials first"
        )
    return best


def _burden(shrunk: Shrunk) -> tuple[int, int]:
    return len(shrunk.moved), sum(len(shrunk.placement.slots[trial]) for trial in shrunk.moved)


def _choices(placement: Placement, *, nodes: Nodes, count: int) -> Iterable[tuple[str, ...]]:
    """Sets of nodes to release, those preferred first."""
    load = dict.fromkeys(nodes.names, (0, 0))
    for slots in placement.slots.values():
        for name in {slot.node for slot in slots} & load.keys():
            trials, gpus = load[name]
            load[name] = trials + 1, gpus + sum(slot.node == name for slot in slots)
    preferred = sorted(nodes.names, key=lambda name: load[name])
    if math.comb(len(preferred), count) > _CHOICES:
        return [tuple(preferred[:count])]
    return combinations(preferred, count)


def _release(
    placement: Placement, *, nodes: Nodes, released: tuple[str, ...], reserved: Collection[str]
) -> Shrunk | None:
    left = Nodes(tuple(name for name in nodes.names if name not in released), nodes.gpus)
    allocation = {trial: len(slots) for trial, slots in placement.slots.items()}
    after = place(allocation, last=placement, nodes=left, reserved=reserved)
    moved = moves(placement, after=after)
    if unplaced(allocation, placement=after) or set(moved) & set(reserved):
        return None
    return Shrunk(after, tuple(name for name in nodes.names if name in released), moved)
