"""A run as it is drawn: its figures step by step, its events, and the signals of its policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kungfu.cli.report import read_events, read_metrics
from kungfu.cli.report.values import finite_number
from kungfu.errors import UsageError
from kungfu.event_log.events import DecisionEvent, LoggedEvent, RecoveredEvent, RescaleEvent, SetEvent
from kungfu.event_log.numbers import as_float

__all__ = ["FRACTIONS", "RecordedRun", "Series", "read_run"]

Series = NDArray[np.float64]
Drawn = TypeVar("Drawn", bound=DecisionEvent | RescaleEvent | RecoveredEvent | SetEvent)

# The fields of a step that are the job's own; every other number is a named signal of a policy.
_OF_THE_JOB = ("time", "step", "epoch", "size", "batch", "loss", "samples_per_s", "learning_rate")
# This one has a value for each peer.
FRACTIONS = "straggler_fractions"


@dataclass(frozen=True)
class RecordedRun:
    """A run: a row of figures for each step, and the events.

    Attributes:
        steps: The numbers of its steps, rising.
        rows: Their figures.
        events: What happened.
    """

    steps: Series
    rows: tuple[Mapping[str, Any], ...]
    events: tuple[LoggedEvent, ...]

    def series(self, name: str) -> Series:
        """The values of one figure, NaN where it is not known."""
        return np.array([_known(row.get(name)) for row in self.rows])

    def happened(self, kind: type[Drawn]) -> list[Drawn]:
        """The events of a kind, of the steps that are drawn."""
        first, last = self.steps[0], self.steps[-1]
        return [event for event in self.events if isinstance(event, kind) and first <= event.step <= last]

    @cached_property
    def signals(self) -> tuple[str, ...]:
        """The names of what can be drawn in a panel of its own, in the order of the record.

        That is each named signal of the policies, the learning rate, and the speeds of the peers.
        """
        names: dict[str, None] = {}
        for row in self.rows:
            for name, value in row.items():
                is_signal = name not in _OF_THE_JOB and as_float(value) is not None
                if is_signal or name == "learning_rate" or (name == FRACTIONS and isinstance(value, Mapping)):
                    names[name] = None
        return tuple(names)

    def fractions(self) -> dict[str, Series]:
        """The speed of each peer as a fraction of the median's, by its id; NaN where it is not known."""
        told = [row.get(FRACTIONS) for row in self.rows]
        mappings = [one if isinstance(one, Mapping) else {} for one in told]
        peers = dict.fromkeys(peer for one in mappings for peer in one)
        return {peer: np.array([_known(one.get(peer)) for one in mappings]) for peer in peers}


def read_run(folder: Path) -> RecordedRun:
    """Reads a run.

    Raises:
        UsageError: There is no record, or no step in it.
    """
    rows = [row for row in read_metrics(folder).rows if finite_number(row.get("step")) is not None]
    if not rows:
        raise UsageError(f"{folder / 'metrics.jsonl'}: no step of the run was measured, so there is nothing to draw")
    rows.sort(key=lambda row: _known(row["step"]))
    return RecordedRun(np.array([_known(row["step"]) for row in rows]), tuple(rows), read_events(folder).events)


def _known(value: object) -> float:
    given = finite_number(value)
    return math.nan if given is None else given
