"""Which GPU of which node works for which trial: the values that the placement controller turns over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from kungfu.errors import UsageError

__all__ = ["Allocation", "Nodes", "Placement", "Slot", "free_slots", "moves", "unplaced"]

Allocation = Mapping[str, int]
"""GPUs of each trial, at least 1."""


class Slot(NamedTuple):
    """One GPU: the name of its node, and its index there."""

    node: str
    gpu: int


@dataclass(frozen=True)
class Nodes:
    """Equal machines: their names, in an order that breaks ties, and how many GPUs each has."""

    names: tuple[str, ...]
    gpus: int

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise UsageError(f"nodes of {self.gpus} GPUs cannot hold a trial; give at least 1")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise UsageError(f"node names {twice} are given twice; give every node its own name")


@dataclass(frozen=True)
class Placement:
    """The GPUs of each placed trial; no GPU belongs to two."""

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


def free_slots(placement: Placement, *, nodes: Nodes) -> dict[str, list[Slot]]:
    """The GPUs of each node that no trial has, in order."""
    taken = {slot for slots in placement.slots.values() for slot in slots}
    every = {name: [Slot(name, gpu) for gpu in range(nodes.gpus)] for name in nodes.names}
    return {name: [slot for slot in slots if slot not in taken] for name, slots in every.items()}


def moves(before: Placement, *, after: Placement) -> tuple[str, ...]:
    """The trials that are placed in both and do not keep all their GPUs, in order of their names: those to migrate."""
    both = before.slots.keys() & after.slots.keys()
    return tuple(sorted(trial for trial in both if set(before.slots[trial]) != set(after.slots[trial])))


def unplaced(allocation: Allocation, *, placement: Placement) -> tuple[str, ...]:
    """The trials of ``allocation`` that have no GPUs, in order of their names: they have to wait."""
    return tuple(sorted(allocation.keys() - placement.slots.keys()))
