"""What a peer knows of its pace, with a clock that is set."""

from __future__ import annotations

import pytest

from kungfu.runtime.settings import Deadlines
from kungfu.training.record.pace import Pace


class Run:
    """A run of steps by hand."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.now, self.waits = 100.0, []
        self.pace = Pace(deadlines, wait_at_most=self.waits.append, clock=lambda: self.now)
        self.pace.entered()

    def steps(self, *seconds: float) -> None:
        for one in seconds:
            self.now += one
            self.pace.stepped()


def test_a_view_begins_with_the_longest_wait_and_adapts_to_what_its_steps_took() -> None:
    run = Run(Deadlines(wait_s=10.0, longest_wait_s=100.0))
    assert run.waits == [100.0]
    run.steps(50.0, *[4.0] * 16)  # the first step of a view began before it
    assert run.waits == [100.0, 20.0]
    run.steps(30.0, *[4.0] * 15)
    assert run.waits == [100.0, 20.0, 60.0], "twice the longest pause"
    run.pace.entered()
    assert run.waits[-1] == 100.0
    run.steps(4.0, *[1.0] * 16)
    assert run.waits[-1] == 10.0, "what was long in another view is forgotten"


def test_a_fixed_deadline_stays() -> None:
    run = Run(Deadlines(wait_s=7.0, longest_wait_s=7.0))
    run.steps(*[3.0] * 200)
    assert set(run.waits) == {7.0}


def test_steps_are_counted_without_barriers_and_barriers_and_stops_apart() -> None:
    run = Run(Deadlines())
    run.steps(1.0, 2.0)
    run.now += 0.5
    run.pace.held(0.5, changed=False)
    run.steps(2.0)
    run.now += 0.25
    run.pace.entered()
    run.pace.held(0.25, changed=True)
    run.steps(1.0, 2.0)
    summary = run.pace.summary()
    assert (summary["step_s"]["count"], summary["step_s"]["max"]) == (3, 2.0)
    assert summary["step_s"]["p50"] == pytest.approx(2.0, rel=0.01)
    assert (summary["barrier_s"]["count"], summary["barrier_s"]["max"]) == (2, 0.5)
    assert (summary["stop_s"]["count"], summary["stop_s"]["max"]) == (1, 0.25)


def test_a_run_that_nobody_waits_for_only_counts() -> None:
    pace = Pace(clock=iter(range(100)).__next__)
    pace.entered()
    for _ in range(40):
        pace.stepped()
    assert pace.summary()["step_s"]["count"] == 39
