"""Notices named signals of the policies that are no number in many steps: nothing else tells a person of it.

A noise scale that is NaN requests nothing, so a policy that waits for it is silent. A signal that has not been a number
yet is not counted: many are none until something was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kungfu.event_log.events import UndefinedEvent
from kungfu.event_log.numbers import as_float

_FIRST_STEPS = 100
# The share of the steps since it was last told, from which on it is told.
_SHARE = 0.1
# The loss has events of its own.
_TOLD_ELSEWHERE = ("loss",)


@dataclass
class _Counted:
    """The steps of a signal since its first number, how many of them had none, and both when it was last looked at."""

    since: int
    steps: int = 0
    missing: int = 0
    steps_before: int = 0
    missing_before: int = 0


class UndefinedSignals:
    """Counts, of each signal, the steps without a number; it is looked at after 100 steps, 200, 400 and so on."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}

    def after_step(self, row: Mapping[str, Any]) -> list[UndefinedEvent]:
        """Counts a step, by its line of the metrics; gives what is to be told."""
        step = row.get("step")
        if not isinstance(step, int):
            return []
        found = ((name, as_float(value)) for name, value in row.items() if name not in _TOLD_ELSEWHERE)
        told = (self._after(name, value, step) for name, value in found if value is not None)
        return [event for event in told if event is not None]

    def _after(self, name: str, value: float, step: int) -> UndefinedEvent | None:
        is_number = math.isfinite(value)
        if name not in self._counted and not is_number:
            return None
        one = self._counted.setdefault(name, _Counted(step))
        one.steps, one.missing = one.steps + 1, one.missing + (not is_number)
        # The first time, and then each time that the steps have doubled.
        if one.steps < max(_FIRST_STEPS, 2 * one.steps_before):
            return None
        is_news = one.missing - one.missing_before >= _SHARE * (one.steps - one.steps_before)
        one.steps_before, one.missing_before = one.steps, one.missing
        return (
            UndefinedEvent(step=step, what=name, since=one.since, missing=one.missing, of=one.steps)
            if is_news
            else None
        )
