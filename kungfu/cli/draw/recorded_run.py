"""A run prepared for a picture: its events, and curves with a point per step, or per group of steps of a long run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kungfu.cli.report.curves import Curves
from kungfu.cli.report.reader import Row, read_events, read_rows, rows_in_order
from kungfu.cli.report.step_groups import DrawnCurve, Series, StepGroups
from kungfu.errors import UsageError
from kungfu.event_log.events import LoggedEvent, Topic, of_topics
from kungfu.event_log.job import FIGURES_OF_JOB
from kungfu.event_log.numbers import as_float
from kungfu.event_log.values import not_finite, number_or_nan

# The figure with a value for each peer.
FRACTIONS = "straggler_fractions"
# A picture is about 1,000 pixels wide.
MOST_GROUPS = 2048
MOST_SIGNALS = 12  # the limit per picture
_USUAL = 4  # the limit if no signals are requested
# The noise scale already has a panel with the batch.
_ELSEWHERE = "noise_scale"


@dataclass(frozen=True)
class RecordedRun:
    """A run with its events and figures; arrays have one entry per point.

    Attributes:
        steps: The step of each point, in rising order; for a group, its last step.
        figures: The figures of the run in groups of steps, one group per point.
        fractions: The speed of each peer as a fraction of the median speed, by the peer's id.
        signals: The names of the figures that can have a separate panel, in the order of the record: the policies'
            named signals, the learning rate, and `FRACTIONS`.
        lost: The steps with a non-finite loss; only the first one of each group.
        lost_as: The kind of the first non-finite loss, as text; empty if every loss is finite.
    """

    steps: Series
    figures: StepGroups
    fractions: Mapping[str, DrawnCurve]
    signals: tuple[str, ...]
    lost: Series
    lost_as: str
    events: tuple[LoggedEvent, ...]

    def curve(self, name: str) -> DrawnCurve:
        """The values of one metric at all points; NaN where the metric is unknown."""
        return self.figures.curve(name)

    def happened(self, *topics: Topic) -> list[Any]:
        """The events of the given topics within the drawn steps."""
        first, last = self.steps[0], self.steps[-1]
        return [event for event in of_topics(self.events, *topics) if first <= event.step <= last]


def read_run(folder: Path) -> RecordedRun:
    """Reads a run; raises ``UsageError`` if there is no record, or no step in the record."""
    run = run_of_rows(read_rows(folder), read_events(folder).events)
    if not len(run.steps):
        raise UsageError(f"{folder / 'metrics.jsonl'}: no step of the run was measured, so there is nothing to draw")
    return run


def run_of_rows(
    rows: Iterable[Row], events: Iterable[LoggedEvent] = (), *, most_groups: int = MOST_GROUPS
) -> RecordedRun:
    """Builds a run of at most ``most_groups`` groups from lines of metrics; a repeated step's last line counts."""
    curves, speeds, lost = Curves(most_groups, most_curves=math.inf), StepGroups(most_groups), StepGroups(most_groups)
    signals, lost_as = dict[str, None](), ""
    for step, row in rows_in_order(rows):
        if not curves.add(row):
            continue
        signals.update((name, None) for name in row if name not in signals and _is_signal(name, row[name]))
        fractions = row.get(FRACTIONS)
        known = fractions.items() if isinstance(fractions, Mapping) else ()
        speeds.add(step, {peer: speed for peer, value in known if (speed := number_or_nan(value)) is not None})
        what = not_finite(row.get("loss"))
        lost_as = lost_as or what
        lost.add(step, {"step": step} if what else {})
    first_lost, of_peers = lost.curve("step").low, {peer: speeds.curve(peer) for peer in speeds.names}
    first_lost, figures = first_lost[~np.isnan(first_lost)], curves.groups
    return RecordedRun(np.array([*figures.lasts()]), figures, of_peers, (*signals,), first_lost, lost_as, (*events,))


def _is_signal(name: str, value: object) -> bool:
    if name in FIGURES_OF_JOB:
        return False
    if name == FRACTIONS:
        return isinstance(value, Mapping)
    return name == "learning_rate" or as_float(value) is not None


def changing_signals(run: RecordedRun) -> tuple[str, ...]:
    """The signals with more than one value in the run; inputs of decisions come first."""
    seen = {name for event in of_topics(run.events, "decision", "setting") for name in event.saw}
    changing = [name for name in run.signals if name != _ELSEWHERE and _changes(run, name)]
    return tuple(sorted(changing, key=lambda name: name not in seen))


def chosen_signals(run: RecordedRun, asked: Sequence[str] | None) -> tuple[str, ...]:
    """The signals in ``asked``, or if None the first of `changing_signals`; ``UsageError`` if unknown or too many."""
    if asked is None:
        return changing_signals(run)[:_USUAL]
    names = tuple(dict.fromkeys(asked))
    for name in names:
        if name not in run.signals:
            known = f"it has {', '.join(run.signals)}" if run.signals else "it has none"
            raise UsageError(f"--signals {name}: no signal of this name is in the record; {known}")
    if len(names) > MOST_SIGNALS:
        raise UsageError(f"--signals: {len(names)} signals are too many for a picture; give up to {MOST_SIGNALS}")
    return names


def _changes(run: RecordedRun, name: str) -> bool:
    if name == FRACTIONS:
        return True
    curve = run.curve(name)
    known = np.isfinite(curve.values)
    return bool(known.any()) and curve.low[known].min() != curve.high[known].max()
