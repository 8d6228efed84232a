"""The numbers of a record that plots show, by name and step: figures of steps, and markers of events.

Long runs are thinned out (see `is_kept`): a curve of a few thousand points shows as much, and stores stay small.

| names | values |
| --- | --- |
| ``job/NAME`` | the numbers of every step, under the names of ``metrics.jsonl``, and ``step_s`` |
| ``signals/NAME`` | the named signals of the policies |
| ``straggler_fractions/peer_N`` | the speed of a peer as a fraction of the median peer's |
| ``markers/KIND`` | a point at the step of a decision or a change: the size that was requested or reached |
| ``settings/NAME`` | a point at each step in which a rule changed a setting: the new value |
| ``rescale/PART_s``, ``recovery/PART_s``, ``checkpoint/...`` | the durations of the parts of a change |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.job import FIGURES_OF_JOB
from kungfu.event_log.numbers import as_float, as_whole, step_seconds
from kungfu.event_log.values import finite_number

# Up to this step, every step is kept; then every 10th step, from ten times this step every 100th, and so on.
_ALL_STEPS = 10_000


class PlottedNumbers(NamedTuple):
    """The numbers of one line of a record: its time in seconds since 1970, its step, and the numbers by name."""

    at: float
    step: int
    numbers: Mapping[str, float]


class NumberReader:
    """Reads the numbers of a record's lines, in the order of the lines; finds the step of every event.

    An event that names no step is assigned the newest known step.
    """

    def __init__(self) -> None:
        self._step = 0

    def of_row(self, row: Mapping[str, Any]) -> PlottedNumbers | None:
        """The numbers of a step; ``None`` if the step is not kept, or if its line lacks required fields."""
        step, at = as_whole(row.get("step")), finite_number(row.get("time"))
        # A line that lacks required fields, such as one from a damaged disk, is skipped.
        if step is None or not 0 <= step < 1 << 62 or at is None:
            return None
        self._step = step
        return PlottedNumbers(at, step, _numbers(row)) if is_kept(step) else None

    def of_event(self, event: LoggedEvent) -> PlottedNumbers:
        """The markers of an event."""
        self._step = max(self._step, getattr(event, "step", 0))
        return PlottedNumbers(event.time or 0.0, getattr(event, "step", self._step), event.markers())


def is_kept(step: int) -> bool:
    """True if the numbers of a step are kept: every step up to 10,000, then every 10th up to 100,000, and so on.

    >>> [is_kept(step) for step in (9_999, 10_001, 10_010, 100_010, 100_100)]
    [True, False, True, False, True]
    """
    every = 1
    while step > _ALL_STEPS * every:
        every *= 10
    return step % every == 0


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a step by name, including NaN and infinities; unknown values are absent."""
    numbers = dict[str, float]()
    for name, value in row.items():
        number = None if name in ("time", "step", "view") else as_float(value)
        if number is not None:
            group = "job" if name in FIGURES_OF_JOB or name == "learning_rate" else "signals"
            numbers[f"{group}/{name}"] = number
    if (seconds := step_seconds(row)) is not None:
        numbers["job/step_s"] = seconds
    fractions = row.get("straggler_fractions")
    for peer, value in fractions.items() if isinstance(fractions, Mapping) else ():
        if (speed := as_float(value)) is not None:
            numbers[f"straggler_fractions/peer_{peer}"] = speed
    return numbers
