"""The placement controller: from GPUs per trial to GPUs on nodes, moving as little as it can.

Deciding only: what comes out is a value, and migrating the trials is somebody else's work.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kungfu.errors import UsageError
from kungfu.tune.placement.layout import Allocation, Nodes, Placement, Slot, free_slots

__all__ = ["place"]


def place(
    allocation: Allocation, *, last: Placement, nodes: Nodes, reserved: Collection[str] = frozenset()
) -> Placement:
    """A placement of ``allocation`` that starts from ``last`` and keeps what it can.

    A trial of at most one node's GPUs is on one node; a larger one has whole nodes, and what does not divide is one
    more share of a node. Largest first, a trial takes the fullest node that still holds it; where none does, the node
    with the most room is cleared of strictly smaller trials, which are then placed again. A trial placed in this round
    is never displaced, nor is one of ``reserved`` (reassigned earlier and not yet confirmed by its workers).

    Gives: ``last`` itself when it already fits. All trials have GPUs when none is reserved, the allocations add up to
    no more than there is, and a node's GPUs and the allocations are powers of two (or multiples of a node); otherwise
    some may be `unplaced`. Raises: UsageError for an allocation below 1, or a reserved trial that is to change.

    >>> nodes = Nodes(("n0", "n1"), gpus=4)
    >>> placed = place({"A": 4, "B": 2, "C": 2}, last=Placement(), nodes=nodes)
    >>> {trial: {slot.node for slot in slots} for trial, slots in placed.slots.items()}
    {'A': {'n0'}, 'B': {'n1'}, 'C': {'n1'}}

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
    """One round in the making: who has what, what is free, and who must stay."""

    slots: dict[str, tuple[Slot, ...]]
    free: dict[str, list[Slot]]
    fixed: set[str]


def _fill(
    allocation: Allocation, *, kept: Mapping[str, tuple[Slot, ...]], nodes: Nodes, reserved: Collection[str]
) -> Placement:
    room = _Room(dict(kept), free_slots(Placement(kept), nodes=nodes), set(reserved))
    queue = sorted((-gpus, trial) for trial, gpus in allocation.items() if trial not in kept)
    while queue:
        trial = queue.pop(0)[1]
        for displaced in _seat(trial, allocation=allocation, room=room, node_gpus=nodes.gpus):
            insort(queue, (-allocation[displaced], displaced))
    return Placement(room.slots)


def _seat(trial: str, *, allocation: Allocation, room: _Room, node_gpus: int) -> list[str]:
    """Place one trial, all or nothing; gives those that had to make room."""
    units = _units(allocation[trial], node_gpus=node_gpus)
    chosen: list[tuple[str, int, list[str]]] = []
    for unit in units:
        used = {node for node, _, _ in chosen}
        found = _best_fit(room, unit=unit, used=used) or _cleared(
            room, unit=unit, used=used, allocation=allocation, below=allocation[trial]
        )
        if found is None:
            return []
        chosen.append((found[0], unit, found[1]))
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
    """The node with the least room that holds ``unit``; nobody has to go."""
    fits = [node for node, free in room.free.items() if node not in used and len(free) >= unit]
    return (min(fits, key=lambda node: len(room.free[node])), []) if fits else None


def _cleared(
    room: _Room, *, unit: int, used: set[str], allocation: Allocation, below: int
) -> tuple[str, list[str]] | None:
    """The node with the most room that can be made to hold ``unit``, and who has to go."""
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
    """The fewest tenants that hold ``needed`` GPUs together: the largest, but the last one as small as will do."""
    going: list[str] = []
    left = sorted(tenants, key=lambda trial: (tenants[trial], trial))
    while needed > 0 and left:
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


def _check(allocation: Allocation, *, last: Placement, reserved: Collection[str]) -> None:
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
