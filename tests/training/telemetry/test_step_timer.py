"""What a peer knows of its pace, with a clock that is set."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.runtime.settings import Deadlines
from kungfu.training.telemetry.step_timer import Downtime, Durations, StepTimer

seconds = st.one_of(st.floats(1e-6, 1e6), st.sampled_from([0.02, 0.021, 3.0]))


class Run:
    """A run of steps by hand, which begins with steps of so many seconds."""

    def __init__(self, *seconds: float, deadlines: Deadlines = Deadlines()) -> None:  # noqa: B008
        self.now, self.waits = 100.0, []
        self.step_timer = StepTimer(deadlines, wait_at_most=self.waits.append, clock=lambda: self.now)
        self.step_timer.entered()
        self.steps(*seconds)

    def steps(self, *seconds: float) -> None:
        for one in seconds:
            self.now += one
            self.step_timer.stepped()


def test_a_view_begins_with_the_longest_wait_and_adapts_to_what_its_steps_took() -> None:
    run = Run(deadlines=Deadlines(wait_s=10.0, longest_wait_s=100.0))
    assert run.waits == [100.0]
    run.steps(50.0, *[4.0] * 16)  # the first step of a view began before it
    assert run.waits == [100.0, 20.0]
    run.steps(30.0, *[4.0] * 15)
    assert run.waits == [100.0, 20.0, 60.0], "twice the longest pause"
    run.step_timer.entered()
    assert run.waits[-1] == 100.0
    run.steps(4.0, *[1.0] * 16)
    assert run.waits[-1] == 10.0, "what was long in another view is forgotten"


def test_steps_are_counted_without_barriers_and_barriers_and_stops_apart() -> None:
    run = Run(1.0, 2.0)
    run.now += 0.5
    run.step_timer.held(0.5, changed=False)
    run.steps(2.0)
    run.now += 0.25
    run.step_timer.entered()
    run.step_timer.held(0.25, changed=True)
    run.steps(1.0, 2.0)
    summary = run.step_timer.summary()
    assert (summary["step_s"]["count"], summary["step_s"]["max"]) == (3, 2.0)
    assert summary["step_s"]["p50"] == pytest.approx(2.0, rel=0.01)
    assert (summary["barrier_s"]["count"], summary["barrier_s"]["max"]) == (2, 0.5)
    assert (summary["stop_s"]["count"], summary["stop_s"]["max"]) == (1, 0.25)


def test_a_run_that_nobody_waits_for_only_counts() -> None:
    step_timer = StepTimer(clock=iter(range(100)).__next__)
    step_timer.entered()
    for _ in range(40):
        step_timer.stepped()
    assert step_timer.summary()["step_s"]["count"] == 39


def seconds_of(stop: Downtime) -> tuple[float, float, float | None, float]:
    return stop.noticed_s, stop.regrouped_s, stop.first_step_s, stop.step_s


def lost(run: Run, *, noticed_s: float, regrouped_s: float) -> float:
    """Peers are lost in a step; gives for how long the peer stood still, as far as it can know."""
    run.now += noticed_s
    run.step_timer.lost()
    run.now += regrouped_s
    run.step_timer.entered()
    return run.step_timer.recovered()


def test_a_loss_stops_training_to_the_end_of_the_next_step_less_a_step() -> None:
    run = Run(9.0, 1.0, 2.0, 2.0, 3.0)
    assert lost(run, noticed_s=11.5, regrouped_s=0.25) == 11.75
    run.steps(2.5)
    assert seconds_of(run.step_timer.stop()) == (11.5, 0.25, 2.5, 2.0)
    assert run.step_timer.stop().seconds == 11.5 + 0.25 + 2.5 - 2.0
    summary = run.step_timer.summary()["stop_s"]
    assert (summary["count"], summary["max"]) == (1, 12.25)
    assert run.step_timer.summary()["barrier_s"] == {"count": 0}


def test_a_step_whose_barrier_broke_was_done_and_the_wait_in_it_is_part_of_the_stop() -> None:
    run = Run(1.0, 1.0, 1.0)
    run.now += 1.0
    run.step_timer.arrived()
    run.now += 5.0
    run.step_timer.stepped()
    lost(run, noticed_s=0.0, regrouped_s=0.5)
    run.steps(1.0)
    assert seconds_of(run.step_timer.stop()) == (5.0, 0.5, 1.0, 1.0)


def test_the_barrier_behind_the_next_step_counts_by_itself() -> None:
    run = Run(1.0, 1.0, 1.0)
    lost(run, noticed_s=0.5, regrouped_s=0.5)
    run.now += 1.0
    run.step_timer.arrived()
    run.now += 3.0
    run.step_timer.held(3.0, changed=True)
    run.step_timer.stepped()
    assert seconds_of(run.step_timer.stop()) == (0.5, 0.5, 1.0, 1.0)
    assert run.step_timer.summary()["stop_s"]["count"] == 2


def test_two_losses_without_a_step_between_them_count_all_seconds_once() -> None:
    run = Run(1.0, 1.0, 1.0)
    first = lost(run, noticed_s=2.0, regrouped_s=0.5)
    second = lost(run, noticed_s=3.0, regrouped_s=0.25)
    run.steps(1.0)
    assert (first, second, run.step_timer.stop().seconds) == (2.5, 3.25, 3.25)
    assert run.step_timer.summary()["stop_s"]["count"] == 2


def test_a_loss_before_the_first_step_counts_from_the_entry() -> None:
    run = Run()
    run.now += 40.0
    run.step_timer.entered()
    lost(run, noticed_s=0.5, regrouped_s=0.25)
    assert seconds_of(run.step_timer.stop()) == (0.5, 0.25, None, 0.0)
    assert run.step_timer.summary()["stop_s"]["max"] == 0.75
    assert run.step_timer.summary()["stop_s"]["count"] == 1


def test_a_next_step_that_is_shorter_than_the_others_makes_no_stop_negative() -> None:
    assert Downtime(0.1, 0.1, 0.5, 2.0).seconds == 0.0


def counted(took: list[float]) -> Durations:
    durations = Durations()
    for one in took:
        durations.add(one)
    return durations


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=300), st.sampled_from([1, 50, 90, 99, 100]))
def test_a_percentile_is_within_one_percent_of_the_one_that_numpy_finds(took: list[float], percent: int) -> None:
    exact = float(np.percentile(took, percent, method="inverted_cdf"))
    assert counted(took).percentile(percent) == pytest.approx(exact, rel=0.01)


def test_a_summary_has_count_marks_and_the_longest_as_it_was() -> None:
    summary = counted([0.02] * 98 + [0.5, 7.25]).summary()
    assert summary == {
        "count": 100,
        "p50": pytest.approx(0.02, rel=0.01),
        "p90": pytest.approx(0.02, rel=0.01),
        "p99": pytest.approx(0.5, rel=0.01),
        "max": 7.25,
    }


def test_nothing_has_no_percentiles_and_no_time_at_all_counts_as_the_shortest() -> None:
    assert Durations().summary() == {"count": 0}
    assert math.isnan(Durations().percentile(50))
    assert counted([0.0, 0.0]).summary() == {"count": 2, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_a_week_of_steps_fits_in_a_few_hundred_bins() -> None:
    rng = np.random.default_rng(0)
    durations = counted(list(rng.lognormal(-3.0, 1.0, 100_000)))
    assert len(durations._counts) < 600
