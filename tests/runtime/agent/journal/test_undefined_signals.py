"""Signals of policies that are no number in many steps are noticed, and told ever more seldom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from kungfu.event_log.events import UndefinedEvent
from kungfu.runtime.agent.journal.undefined_signals import UndefinedSignals


def told(value: Callable[[int], object], *, name: str = "noise_scale", steps: int = 1000) -> list[UndefinedEvent]:
    signals = UndefinedSignals()
    rows = ({"step": step, "loss": "NaN", "samples_per_s": None, name: value(step)} for step in range(1, steps + 1))
    return [event for row in rows for event in signals.after_step(row)]


def steps_of(events: list[UndefinedEvent]) -> Iterator[tuple[int, int, int]]:
    return ((one.step, one.missing, one.of) for one in events)


@pytest.mark.parametrize("none", ["NaN", math.nan, "Infinity"])
def test_a_noise_scale_that_is_nan_in_half_of_the_steps_is_told(none: object) -> None:
    found = told(lambda step: 1.5 if step % 2 else none)
    assert [*steps_of(found)] == [(100, 50, 100), (200, 100, 200), (400, 200, 400), (800, 400, 800)]
    assert {(one.what, one.since) for one in found} == {("noise_scale", 1)}


def test_a_signal_counts_from_its_first_number_on() -> None:
    assert told(lambda step: "NaN") == []
    assert told(lambda step: "NaN" if step < 900 else 1.0) == []
    assert [*steps_of(told(lambda step: 1.0 if step in (7, 8) else "NaN", steps=110))] == [(106, 98, 100)]


def test_single_steps_and_what_is_over_are_not_told() -> None:
    assert told(lambda step: "NaN" if step % 11 == 0 else 1.0) == []
    assert [*steps_of(told(lambda step: "NaN" if 10 < step < 70 else 1.0))] == [(100, 59, 100)]


def test_what_is_no_number_of_a_policy_is_left_out() -> None:
    assert told(lambda step: {"samples": step} if step > 1 else 1.0, name="progress") == []
    assert told(lambda step: "NaN" if step % 2 else 1.0, name="loss") == []
    assert UndefinedSignals().after_step({"noise_scale": "NaN"}) == []
