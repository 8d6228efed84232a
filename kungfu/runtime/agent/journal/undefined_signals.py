"""Detects named signals of policies that are not finite in many steps; nothing else reports them.

A policy that waits for a noise scale requests nothing while it is NaN. Steps before the first number of a signal are
not counted: many signals are NaN until something was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kungfu.event_log.events import UndefinedEvent
from kungfu.event_log.numbers import as_float

_FIRST_STEPS = 100
# The minimum share of undefined steps since the last check that is reported.
_SHARE = 0.1
# The loss has separate events.
_REPORTED_ELSEWHERE = ("loss",)


@dataclass
class _Counted:
    """The steps since the first number of a signal, the undefined steps among them, and both at the last check."""

    since: int
    steps: int = 0
    missing: int = 0
    steps_before: int = 0
    missing_before: int = 0


class UndefinedSignals:
    """Counts the steps in which a signal is undefined; each signal is checked after 100, 200, 400 steps and so on."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}

    def after_step(self, row: Mapping[str, Any]) -> list[UndefinedEvent]:
        """Counts a step by its line of metrics; returns the events to record."""
        step = row.get("step")
        if not isinstance(step, int):
            return []
        found = ((name, as_float(value)) for name, value in row.items() if name not in _REPORTED_ELSEWHERE)
        reports = (self._after(name, value, step) for name, value in found if value is not None)
        return [event for event in reports if event is not None]

    def _after(self, name: str, value: float, step: int) -> UndefinedEvent | None:
        is_number = math.isfinite(value)
        if name not in self._counted and not is_number:
            return None
        one = self._counted.setdefault(name, _Counted(step))
        one.steps, one.missing = one.steps + 1, one.missing + (not is_number)
        # A check is due after the first steps, and then whenever the steps have doubled.
        if one.steps < max(_FIRST_STEPS, 2 * one.steps_before):
            return None
        is_news = one.missing - one.missing_before >= _SHARE * (one.steps - one.steps_before)
        one.steps_before, one.missing_before = one.steps, one.missing
        if not is_news:
            return None
        return UndefinedEvent(step=step, what=name, since=one.since, missing=one.missing, of=one.steps)
