"""How far a job is, and how long it has yet to go."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from kungfu.event_log.events import FinishedEvent, PhaseEvent, SetEvent, ViewEvent
from kungfu.event_log.job import Job
from kungfu.event_log.progress import Pace, ProgressSoFar, TrainingProgress, WholeBatches


def row(step: int, *, size: int = 2, left: int | None = 10_000, time: float | None = None) -> dict[str, Any]:
    """A step of 100 samples a second."""
    samples = {} if left is None else {"samples_left": left - 100 * step, "steps_left": left // 100 - step, "epochs": 9}
    progress = {"samples": 100 * step, "epoch": 1, **samples}
    return {"time": 50.0 + step if time is None else time, "step": step, "size": size, "progress": progress}


def after(*rows: dict[str, Any], so_far: ProgressSoFar | None = None) -> ProgressSoFar:
    return reduce(ProgressSoFar.after_step, rows, so_far or ProgressSoFar())


def test_the_time_left_is_known_after_some_steps_and_follows_their_pace() -> None:
    assert after(*map(row, range(1, 4))).progress.seconds_left is None
    progress = after(*map(row, range(1, 41))).progress
    assert progress == TrainingProgress(
        samples=4000, epoch=1, epochs=9, samples_left=6000, steps_left=60, seconds_left=pytest.approx(60.0)
    )


def test_after_a_change_of_the_size_it_follows_the_steps_of_the_new_one() -> None:
    before = after(*map(row, range(1, 11)))
    rows = [row(step, size=4, time=60.0 + (step - 10) / 2) for step in range(11, 15)]
    assert after(*rows[:3], so_far=before).progress.seconds_left is None
    assert after(*rows, so_far=before).progress.seconds_left == pytest.approx(8600 / 200)


def test_what_passes_between_epochs_is_part_of_the_pace() -> None:
    rows = [row(step, time=step + 5.0 * (step // 10)) for step in range(1, 52)]
    seconds = after(*rows).progress.seconds_left
    assert seconds == pytest.approx(49 * 1.5, rel=0.02), "a step takes a second, and each tenth a validation of five"


def test_it_is_that_of_the_last_minutes_in_few_marks() -> None:
    slow = [row(step, left=10**9, time=10.0 * step) for step in range(1, 100)]
    fast = [row(step, left=10**9, time=1000.0 + step) for step in range(100, 2000)]
    pace = after(*slow, *fast).pace
    assert pace.seconds_for(1000) == pytest.approx(10.0, rel=0.05)
    assert len(pace.marks) < 70


def test_steps_that_are_done_again_and_a_clock_that_is_set_back_begin_it_anew() -> None:
    pace = Pace().after(10.0, 1000, size=2).after(11.0, 1100, size=2)
    assert pace.after(12.0, 900, size=2) == Pace(2, 1, ((12.0, 900),))
    assert pace.after(5.0, 1200, size=2) == Pace(2, 1, ((5.0, 1200),))


def test_without_known_epochs_there_are_samples_and_nothing_else() -> None:
    progress = after(*(row(step, left=None) for step in range(1, 20))).progress
    assert progress == TrainingProgress(samples=1900, epoch=1)


def test_another_fit_begins_its_pace_anew_and_a_stop_leaves_nothing_to_come() -> None:
    job = Job(progress=after(*map(row, range(1, 11))))
    known, again = job.progress.progress, PhaseEvent(phase=2, view=2, peers=(0, 1))
    assert known.seconds_left is not None
    assert job.after(ViewEvent(version=2, peers=(0,))).progress.progress == known
    assert job.after(again).progress.progress.seconds_left is None
    stop = SetEvent(step=10, rule="stop_on_nan", saw={}, what="stop", to=None, over=0, unit="steps")
    assert job.after(stop).progress.progress == TrainingProgress(samples=1000)
    # The line of the last step may come after the event, and another fit has time to come again.
    over = job.after(stop).after_step(row(11))
    assert over.progress.progress == TrainingProgress(samples=1100)
    assert over.after(again).after_step(row(12)).progress.progress.steps_left == 88
    left, ended = (FinishedEvent(peer=1, leaving=leaving, steps=11, traces=1) for leaving in (True, False))
    assert job.after(left).progress.progress == known
    assert job.after(ended).progress.progress == TrainingProgress(samples=1000)
    last = job.after(ended).after_step(row(11, left=1100)).progress.progress
    assert last == TrainingProgress(samples=1100, epoch=1, epochs=9, samples_left=0, steps_left=0), "it came to all"
    rate = SetEvent(step=10, rule="linear", saw={}, what="learning rate", to=0.5, over=0, unit="steps")
    assert job.after(rate).progress.progress == known


@pytest.mark.parametrize("given", [None, 0.5, [], {"samples": "many", "samples_left": True, "steps_left": None}])
def test_lines_without_progress_leave_none(given: object) -> None:
    so_far = after({"time": 1.0, "step": 1, "size": 2, "progress": given})
    assert so_far.progress == TrainingProgress()
    assert after({"step": 1}).progress == TrainingProgress()


# ---- the batch in force, the throughput and the fraction -------------------------------------------------------------


def test_the_smaller_last_batch_of_an_epoch_is_no_batch_and_a_smaller_batch_is_one() -> None:
    def told(*rows: tuple[int | None, object]) -> list[float | None]:
        batches, found = WholeBatches(), list[float | None]()
        for epoch, batch in rows:
            batches = batches.after({"epoch": epoch, "batch": batch})
            found.append(batches.batch)
        return found

    assert told((0, 256), (0, 157), (1, 256), (1, 157), (2, 128), (2, 128)) == [256, 256, 256, 256, 128, 128]
    assert told((0, 256), (0, 256), (0, 64), (0, 64), (1, 64)) == [256, 256, 256, 64, 64], "a rule has set it"
    assert told((0, 9), (1, 8), (2, 7)) == [9, 8, 7], "epochs of one step"
    assert told((None, "many"), (None, 9), (None, "NaN"), (None, 5), (None, 9)) == [None, 9, 9, 9, 9]


def job_after(*rows: dict[str, Any]) -> Job:
    return reduce(Job.after_step, rows, Job())


def test_the_throughput_is_that_of_the_last_minute_with_all_that_passed_in_it() -> None:
    """A step takes half a second, and each tenth a validation of five; before that, another pace."""
    slow = [{"time": 5.0 * step, "step": step, "size": 2, "batch": 64, "samples_per_s": 12.8} for step in range(100)]
    times = [500.0 + step / 2 + 5.0 * (step // 10) for step in range(200)]
    fast = [{**slow[0], "time": time, "step": 100 + step, "samples_per_s": 128.0} for step, time in enumerate(times)]
    assert job_after(*slow).samples_per_s == pytest.approx(12.8)
    assert job_after(*slow, *fast).samples_per_s == pytest.approx(64.0, rel=0.1), "half of what a step shows"
    assert job_after(*fast[:2]).samples_per_s == 128.0, "of one step before several are known"
    grown = {**fast[-1], "size": 3, "time": fast[-1]["time"] + 1.0, "samples_per_s": 200.0}
    assert job_after(*fast, grown).samples_per_s == 200.0, "the pace of another size predicts nothing"


def test_the_fraction_is_that_of_the_present_fit_and_unknown_without_a_plan() -> None:
    def fit(number: int, samples: int, left: int | None) -> dict[str, Any]:
        return {"time": 1.0, "step": 1, "progress": {"samples": samples, "samples_left": left, "fit": number}}

    assert after(fit(1, 100, 300)).fraction == 0.25
    assert after(fit(1, 400, 0)).fraction == 1.0
    assert after(fit(1, 400, 0), fit(2, 450, 150)).fraction == 0.25
    assert after(fit(1, 100, None)).fraction is None
    assert after(fit(1, 100, 300)).ended().fraction is None, "the rest of the plan is void"
