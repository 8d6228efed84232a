"""A run as it is drawn: its figures over its steps, its events, and the signals of its policies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from kungfu.cli.draw.curves import CurvesOfRun, DrawnCurve, Series, read_curves
from kungfu.cli.report import read_events
from kungfu.errors import UsageError
from kungfu.event_log.events import DecisionEvent, LoggedEvent, RecoveredEvent, RescaleEvent, SetEvent

__all__ = ["RecordedRun", "read_run"]

Drawn = TypeVar("Drawn", bound=DecisionEvent | RescaleEvent | RecoveredEvent | SetEvent)

# The fields of a step that are the job's own; every other number is a named signal of a policy.
_OF_THE_JOB = ("time", "step", "epoch", "size", "batch", "loss", "samples_per_s")


@dataclass(frozen=True)
class RecordedRun:
    """A run: its curves, and the events.

    Attributes:
        curves: The figures of its steps.
        events: What happened.
    """

    curves: CurvesOfRun
    events: tuple[LoggedEvent, ...]

    @property
    def steps(self) -> Series:
        """The steps at which there are points, rising."""
        return self.curves.steps

    def curve(self, name: str) -> DrawnCurve:
        """The points of one figure, NaN where it is not known."""
        return self.curves.curves.get(name, self._unknown)

    def happened(self, kind: type[Drawn]) -> list[Drawn]:
        """The events of a kind, of the steps that are drawn."""
        first, last = self.steps[0], self.steps[-1]
        return [event for event in self.events if isinstance(event, kind) and first <= event.step <= last]

    @cached_property
    def signals(self) -> tuple[str, ...]:
        """The names of what can be drawn in a panel of its own, in the order of the record.

        That is each named signal of the policies, the learning rate, and the speeds of the peers.
        """
        return tuple(name for name in self.curves.names if name not in _OF_THE_JOB)

    @cached_property
    def _unknown(self) -> DrawnCurve:
        nothing = np.full(len(self.steps), np.nan)
        return DrawnCurve(nothing, nothing, nothing, np.zeros(len(self.steps)))


def read_run(folder: Path) -> RecordedRun:
    """Reads a run.

    Raises:
        UsageError: There is no record, or no step in it.
    """
    curves = read_curves(folder)
    if not len(curves.steps):
        raise UsageError(f"{folder / 'metrics.jsonl'}: no step of the run was measured, so there is nothing to draw")
    return RecordedRun(curves, read_events(folder).events)
