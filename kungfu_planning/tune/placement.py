"""The assignment of nodes' GPUs to trials, for a placement controller."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from kungfu.errors import UsageError

Allocation = Mapping[str, int]
"""The GPUs of each trial, at least 1."""


class Slot(NamedTuple):
    """A GPU: the name of its node, and its index on the node."""

    node: str
    gpu: int


@dataclass(frozen=True)
class Nodes:
    """Equal machines: their names, in the order that breaks ties, and the number of GPUs of each."""

    names: tuple[str, ...]
    gpus: int

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise UsageError(f"nodes of {self.gpus} GPUs cannot hold a trial; give at least 1")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise UsageError(f"node names {twice} are given twice; give every node its own name")


@dataclass(frozen=True)
class TrialPlacement:
    """The GPUs of each placed trial; no GPU belongs to two trials."""

    slots: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken: dict[Slot, str] = {}
        for trial, slots in self.slots.items():
            for slot in slots:
                other = taken.setdefault(slot, trial)
                if other != trial or slots.count(slot) > 1:
                    raise UsageError(
                        f"GPU {slot.gpu} of node {slot.node} is given to {other} and to {trial}; give it once"
                    )
        object.__setattr__(self, "slots", MappingProxyType(dict(self.slots)))


def free_gpu_slots(placement: TrialPlacement, *, nodes: Nodes) -> dict[str, list[Slot]]:
    """The free GPUs of each node, in order."""
    taken = {slot for slots in placement.slots.values() for slot in slots}
    every = {name: [Slot(name, gpu) for gpu in range(nodes.gpus)] for name in nodes.names}
    return {name: [slot for slot in slots if slot not in taken] for name, slots in every.items()}


def moves(before: TrialPlacement, *, after: TrialPlacement) -> tuple[str, ...]:
    """The trials to migrate, in order of their names: placed before and after, but not on the same GPUs."""
    both = before.slots.keys() & after.slots.keys()
    return tuple(sorted(trial for trial in both if set(before.slots[trial]) != set(after.slots[trial])))


def unplaced(allocation: Allocation, *, placement: TrialPlacement) -> tuple[str, ...]:
    """The trials of ``allocation`` that have no GPUs and must wait, in order of their names."""
    return tuple(sorted(allocation.keys() - placement.slots.keys()))


def place(
    allocation: Allocation, *, last: TrialPlacement, nodes: Nodes, reserved: Collection[str] = frozenset()
) -> TrialPlacement:
    """A placement of ``allocation`` that keeps as much as possible of the placement ``last``.

    A trial of at most one node's GPUs is on one node; a larger trial has whole nodes, and a part of one more node for
    the remainder. Trials are placed largest first, each on the fullest node with enough room. Without such a node,
    the node with the most room is cleared of strictly smaller trials, which are then placed again. Trials placed in
    this round and ``reserved`` trials (reassigned earlier and not yet confirmed by their workers) are never displaced.

    Args:
        allocation: the GPUs of each trial.
        last: the present placement.
        nodes: the names of the present nodes, and the GPUs of each.
        reserved: trials that must not be displaced.

    Returns:
        ``last`` itself if it already fits. All trials have GPUs if no trial is reserved, the allocations do not exceed
        the nodes, and a node's GPUs and the allocations are powers of two (or multiples of a node); otherwise some
        trials may be `unplaced`.

    Raises:
        UsageError: An allocation is below 1, or a reserved trial would have to change.

    >>> nodes = Nodes(("n0", "n1"), gpus=4)
    >>> placed = place({"A": 4, "B": 2, "C": 2}, last=TrialPlacement(), nodes=nodes)
    >>> {trial: {slot.node for slot in slots} for trial, slots in placed.slots.items()}
    {'A': {'n0'}, 'B': {'n1'}, 'C': {'n1'}}

    Reference:
        Misra et al., 2021, algorithm 3.
    """
    _check(allocation, last=last, reserved=reserved)
    kept = {
        trial: slots for trial, slots in last.slots.items() if _right(slots, gpus=allocation.get(trial), nodes=nodes)
    }
    if len(kept) == len(last.slots) == len(allocation):
        return last
    return _fill(allocation, kept=kept, nodes=nodes, reserved=reserved)


@dataclass(frozen=True)
class _Room:
    """A round of placing: slots of placed trials, free slots of nodes, and fixed trials, which may not move."""

    slots: dict[str, tuple[Slot, ...]]
    free: dict[str, list[Slot]]
    fixed: set[str]


def _fill(
    allocation: Allocation, *, kept: Mapping[str, tuple[Slot, ...]], nodes: Nodes, reserved: Collection[str]
) -> TrialPlacement:
    room = _Room(dict(kept), free_gpu_slots(TrialPlacement(kept), nodes=nodes), set(reserved))
    queue = sorted((-gpus, trial) for trial, gpus in allocation.items() if trial not in kept)
    # Largest first; displaced trials are strictly smaller and queue again, so the loop ends.
    while queue:
        trial = queue.pop(0)[1]
        for displaced in _seat(trial, allocation=allocation, room=room, node_gpus=nodes.gpus):
            insort(queue, (-allocation[displaced], displaced))
    return TrialPlacement(room.slots)


def _seat(trial: str, *, allocation: Allocation, room: _Room, node_gpus: int) -> list[str]:
    """Places all GPUs of a trial, or none if there is no room; returns the trials displaced for it."""
    units = _units(allocation[trial], node_gpus=node_gpus)
    chosen: list[tuple[str, int, list[str]]] = []
    for unit in units:
        used = {node for node, _, _ in chosen}
        # Best fit first, since it moves no trial; else clear a node of smaller trials.
        found = _best_fit(room, unit=unit, used=used) or _cleared(
            room, unit=unit, used=used, allocation=allocation, below=allocation[trial]
        )
        # A part has no place: nothing has changed yet, and the trial waits.
        if found is None:
            return []
        chosen.append((found[0], unit, found[1]))
    # A trial on several nodes is displaced from all of them, even if only one is cleared.
    displaced = sorted({other for _, _, others in chosen for other in others})
    for other in displaced:
        _remove(room, trial=other)
    room.slots[trial] = tuple(slot for node, unit, _ in chosen for slot in _take(room, node=node, count=unit))
    room.fixed.add(trial)
    return displaced


def _units(gpus: int, *, node_gpus: int) -> list[int]:
    whole, rest = divmod(gpus, node_gpus)
    return [node_gpus] * whole + ([rest] if rest else [])


def _best_fit(room: _Room, *, unit: int, used: set[str]) -> tuple[str, list[str]] | None:
    """The fullest node with ``unit`` free GPUs, and an empty list of trials to displace; None without such a node."""
    fits = [node for node, free in room.free.items() if node not in used and len(free) >= unit]
    return (min(fits, key=lambda node: len(room.free[node])), []) if fits else None


def _cleared(
    room: _Room, *, unit: int, used: set[str], allocation: Allocation, below: int
) -> tuple[str, list[str]] | None:
    """The node with the most free GPUs where ``unit`` get free if smaller trials leave, and these trials; or None."""
    for node in sorted(room.free, key=lambda name: -len(room.free[name])):
        tenants = {
            trial: sum(slot.node == node for slot in slots)
            for trial, slots in room.slots.items()
            if allocation[trial] < below and trial not in room.fixed
        }
        going = _fewest({trial: held for trial, held in tenants.items() if held}, needed=unit - len(room.free[node]))
        if node not in used and going is not None:
            return node, going
    return None


def _fewest(tenants: Mapping[str, int], *, needed: int) -> list[str] | None:
    """Trials that hold ``needed`` GPUs: the largest first, the last as small as possible; None if all hold fewer."""
    going: list[str] = []
    left = sorted(tenants, key=lambda trial: (tenants[trial], trial))
    while needed > 0 and left:
        # The smallest tenant that is enough alone, else the largest.
        enough = [trial for trial in left if tenants[trial] >= needed]
        trial = enough[0] if enough else left[-1]
        left.remove(trial)
        going.append(trial)
        needed -= tenants[trial]
    return going if needed <= 0 else None


def _take(room: _Room, *, node: str, count: int) -> list[Slot]:
    taken, room.free[node] = room.free[node][:count], room.free[node][count:]
    return taken


def _remove(room: _Room, *, trial: str) -> None:
    for slot in room.slots.pop(trial):
        insort(room.free[slot.node], slot)


def _right(slots: tuple[Slot, ...], *, gpus: int | None, nodes: Nodes) -> bool:
    return len(slots) == gpus and all(slot.node in nodes.names for slot in slots)


def _check(allocation: Allocation, *, last: TrialPlacement, reserved: Collection[str]) -> None:
    for trial, gpus in allocation.items():
        if gpus < 1:
            raise UsageError(f"trial {trial} is given {gpus} GPUs; give at least 1, or leave the trial out to end it")
    for trial in reserved:
        held = len(last.slots.get(trial, ()))
        if held and allocation.get(trial, 0) not in (0, held):
            raise UsageError(
                f"trial {trial} is reserved with {held} GPUs and cannot change to {allocation[trial]} before its"
                " workers have confirmed their places; wait for them, or keep its allocation"
            )


_CHOICES = 1000
"""The most sets of nodes that are all tried; if there are more, only the set with the fewest trials is tried."""


@dataclass(frozen=True)
class Shrunk:
    """A ``placement`` without the nodes ``released``; ``moved`` are the trials to migrate before these are released."""

    placement: TrialPlacement
    released: tuple[str, ...]
    moved: tuple[str, ...]


def shrink(placement: TrialPlacement, *, nodes: Nodes, keep: int, reserved: Collection[str] = frozenset()) -> Shrunk:
    """Packs the placed trials onto ``keep`` of the nodes, with the fewest moves.

    If there are at most 1,000 possible sets of released nodes, all sets are tried, and the set with the fewest moves is
    chosen (ties: the fewest moved GPUs). Otherwise the nodes with the fewest trials are released.

    Args:
        placement: the present GPUs of each trial.
        nodes: the names of the present nodes, and the GPUs of each.
        keep: the number of nodes to keep.
        reserved: trials that must not move.

    Raises:
        UsageError: ``keep`` is not between 0 and the number of nodes, or ``keep`` nodes cannot hold all trials.

    >>> from kungfu_planning.tune.placement import Slot
    >>> before = TrialPlacement({"A": (Slot("n0", 0),), "B": (Slot("n1", 0),), "C": (Slot("n2", 0), Slot("n2", 1))})
    >>> after = shrink(before, nodes=Nodes(("n0", "n1", "n2"), gpus=4), keep=1)
    >>> after.released, after.moved
    (('n0', 'n1'), ('A', 'B'))

    Reference:
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


def _choices(placement: TrialPlacement, *, nodes: Nodes, count: int) -> Iterable[tuple[str, ...]]:
    """The sets of ``count`` nodes to try to release, nodes with few trials first; only the first of over 1,000 sets."""
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
    placement: TrialPlacement, *, nodes: Nodes, released: tuple[str, ...], reserved: Collection[str]
) -> Shrunk | None:
    left = Nodes(tuple(name for name in nodes.names if name not in released), nodes.gpus)
    allocation = {trial: len(slots) for trial, slots in placement.slots.items()}
    after = place(allocation, last=placement, nodes=left, reserved=reserved)
    moved = moves(placement, after=after)
    # Not possible: a trial would have no GPUs, or a reserved trial would move.
    if unplaced(allocation, placement=after) or set(moved) & set(reserved):
        return None
    return Shrunk(after, tuple(name for name in nodes.names if name in released), moved)
