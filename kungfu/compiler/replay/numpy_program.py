"""NumPy programs: a plan written down once as calls of NumPy, and run in every step of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kungfu.compiler.plan import Outcome
from kungfu.signal import NEST
from kungfu.signal.operation import SignalType

SIZE = 0  # the cell that holds the number of peers

Cells = list[Any]
Instruction = Callable[[Cells], None]


@dataclass(frozen=True)
class Cell:
    """Where a value of a running program is.

    Args:
        number: The place.
        type: The type of one peer's value.
        shared: Whether all peers have the value in common: it is there once, else with a first axis for the peers.
    """

    number: int
    type: SignalType
    shared: bool

    def loaded(self, values: Sequence[Any]) -> Any:
        """Each peer's value as the cell holds it."""
        if self.type.shape == NEST:
            return values[0] if self.shared else tuple(values)
        if self.shared:
            return _as_scalar(values[0], self.type)
        try:
            return np.array(values, self.type.dtype)
        except (ValueError, OverflowError, TypeError):
            # A number that the dtype cannot hold becomes what a cast makes of it.
            return np.stack([np.asarray(one).astype(self.type.dtype) for one in values])

    def shown(self, value: Any, size: int) -> tuple[Any, ...]:
        """What the cell holds, as a tuple with each peer's value."""
        return (np.asarray(value),) * size if self.shared else tuple(np.asarray(one) for one in value)


def _as_scalar(value: Any, type: SignalType) -> Any:
    try:
        if not type.shape:
            return _SCALARS[type.dtype](value)
    except (ValueError, OverflowError, TypeError):
        pass
    return np.asarray(value).astype(type.dtype)[()]


_SCALARS: Mapping[str, Callable[[Any], Any]] = {"bool": np.bool_, "int64": np.int64, "float32": np.float32}


@dataclass(frozen=True, eq=False)
class NumpyProgram:
    """A plan as a list of calls.

    Args:
        code: The instructions, in order.
        template: What the cells begin with: constants, and nothing.
        inputs: The cells of sources and gradient reductions, by name.
        states: The cells that begin with the states of the folds, in the order of the plan.
        renewed: The cells in which they end.
        outcome: The cells of the outcome's fields.
    """

    code: Sequence[Instruction]
    template: Cells
    inputs: Mapping[str, Cell]
    states: Sequence[Cell]
    renewed: Sequence[Cell]
    outcome: Sequence[Cell]

    def run(
        self, sources: Mapping[str, Sequence[Any]], states: Sequence[Any], *, size: int
    ) -> tuple[Outcome, list[Any]]:
        """One step of a cluster.

        Args:
            sources: Each peer's value of the sources, and of the gradient reductions that are given.
            states: What the cells of the states begin with.
            size: Peers.

        Returns:
            The outcome, and what the states have become.
        """
        cells = self.template.copy()
        cells[SIZE] = size
        for name, cell in self.inputs.items():
            cells[cell.number] = cell.loaded(sources[name])
        for cell, state in zip(self.states, states, strict=True):
            cells[cell.number] = state
        with np.errstate(all="ignore"):
            for one in self.code:
                one(cells)
        return Outcome(*[cells[one.number] for one in self.outcome]), [cells[one.number] for one in self.renewed]
