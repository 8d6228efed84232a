"""The screen of a job: its state, the live screen painted on a console in memory, and plain lines."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from kungfu.cli.console import screens
from kungfu.cli.console.screens import KUNGFU, OutputLine, ScreenState, ScreenUpdate, activity_words, status_words
from kungfu.event_log.events import AnyEvent
from kungfu.event_log.job import Job, fold
from tests.cli.recorded import GROWN, measured
from tests.event_log.made import made

JOB = fold(GROWN[:6]).after_step(measured(1204, loss=None))
DECIDED = "step 50, gns_batch: 2 -> 3 peers, under way (noise scale 50.7, local batch size 16)"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def test_of_a_flood_the_newest_lines_are_kept_and_the_others_counted() -> None:
    state = ScreenState()
    for number in range(1200):
        state.add_line(OutputLine("rank 0", str(number)))
    update = state.update()
    assert ([line.text for line in update.lines], update.dropped) == ([*map(str, range(700, 1200))], 700)
    update = state.update()
    assert (update.lines, update.dropped) == ((), 0), "each line is given once"


def test_the_job_is_the_newest_and_stays_after_an_update() -> None:
    state = ScreenState()
    state.event(GROWN[3])
    state.step(measured(3))
    state.step(measured(4))
    assert state.update().job.newest["step"] == 4
    assert activity_words(state.update().job) == "training"


def test_who_waits_is_woken_by_news_and_by_an_end_and_not_by_an_earlier_update() -> None:
    state = ScreenState()
    state.add_line(OutputLine("rank 0", "one"))
    state.wait(60.0)
    state.update()
    threading.Timer(0.05, state.event, [GROWN[3]]).start()
    state.wait(60.0)
    assert activity_words(state.update().job) == "training"
    threading.Timer(0.05, state.wake).start()
    state.wait(60.0)
    state.update()
    began = time.monotonic()
    state.wait(0.05)
    assert time.monotonic() - began >= 0.05


def test_a_measured_step_is_shown_with_every_monitor_under_its_name() -> None:
    job = Job().after_step(measured(7, loss=0.25, samples_per_s=1234.5, noise_scale=21.0, signal_to_noise=0.5))
    assert status_words(job) == (
        ("step", "7"), ("samples/s", "1,234"), ("peers", "2"), ("batch", "32"), ("loss", "0.250"),
        ("noise scale", "21"), ("signal to noise", "0.500"),
    )  # fmt: skip


def test_how_far_the_job_is_is_shown_with_the_time_left() -> None:
    job = Job()
    for step in range(1, 11):
        left = {"samples_left": 32 * (1000 - step), "steps_left": 1000 - step}
        job = job.after_step(measured(step, progress={"samples": 32 * step, "epoch": 2, "epochs": 5, **left}))
    assert status_words(job)[:5] == (
        ("step", "10 of 1,000"), ("epoch", "2 of 5"), ("samples", "320"), ("time left", "about 16 min"),
        ("samples/s", "32"),
    )  # fmt: skip
    assert "progress" not in dict(status_words(job))
    job = job.after_step(measured(11, progress={"samples": 352, "epoch": 1, "epochs": 4, "fit": 2}))
    assert status_words(job)[:4] == (("step", "11"), ("fit", "2"), ("epoch", "1 of 4"), ("samples", "352"))
    assert ("progress", "0.500") in status_words(Job().after_step(measured(1, progress=0.5))), "a signal of this name"


LOST = made(event="not finite", what="loss", step=8, value="NaN")
AGAIN = made(event="finite again", what="loss", step=11, since=8)
ODD = {"loss": float("nan"), "size": None, "noise_scale": float("inf"), "batch": "many"}


@pytest.mark.parametrize(
    ("events", "rows", "words"),
    [
        ([], [measured(7, samples_per_s=600.0), measured(8, samples_per_s=None)], {"samples/s": "600"}),
        ([], [measured(7, **ODD)], {"peers": "-", "batch": "-", "loss": "NaN", "noise scale": "Infinity"}),
        ([LOST], [measured(10, loss="Infinity")], {"loss": "Infinity since step 8"}),
        ([LOST, AGAIN], [measured(11, loss=0.25)], {"loss": "0.250"}),
    ],
)
def test_figures_that_are_unknown_or_no_numbers_are_shown_as_such(
    events: list[AnyEvent], rows: list[dict[str, Any]], words: dict[str, str]
) -> None:
    job = fold(events)
    for row in rows:
        job = job.after_step(row)
    assert dict(status_words(job)).items() >= words.items()
    assert [value for _, value in status_words(Job())] == ["-"] * 6, "before the first step"


def test_the_phase_follows_the_start_and_the_first_view() -> None:
    started = Job().after(GROWN[0])
    assert activity_words(started) == "2 peers getting ready"
    training = started.after(GROWN[3])
    assert activity_words(training) == "training"
    left, over = (made(event="finished", peer=1, leaving=leaving, steps=9, traces=1) for leaving in (True, False))
    assert activity_words(training.after(left)) == "training"
    ended = training.after(over)
    assert activity_words(ended) == "training is over, the program continues"
    assert activity_words(ended.after(made(event="phase", phase=2, view=1, peers=[0]))) == "training"


def test_the_slowest_peer_is_shown_where_a_policy_measures_how_fast_they_are() -> None:
    fractions = {"0": 1.0, "3": 0.512, "12": "NaN"}
    words = status_words(Job().after_step(measured(7, straggler_fractions=fractions)))
    assert words[-1] == ("slowest", "peer 3, 0.512 of the median speed")
    assert len(words) == len(status_words(Job().after_step(measured(7)))) + 1


# ---- the two screens -------------------------------------------------------------------------------------------------


def painted(update: Sequence[ScreenUpdate], *, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=24, color_system="standard", _environ={})
    screen = screens.LiveScreen(console, clock=lambda: 0.0, now=lambda: 150.0)
    screen.open()
    for one in update:
        screen.show(one)
    screen.close()
    return out.getvalue()


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\xa0", " ")


def test_the_status_shows_every_figure_and_what_is_unknown_as_such() -> None:
    screen = bare(painted([ScreenUpdate((), 0, JOB)]))
    for words in ("step 1,204", "samples/s 700", "peers 2", "batch 32", "loss -", "noise scale 3,612", " training, "):
        assert words in screen
    assert f"last decision: {DECIDED}; 1 starting for 40 s" in " ".join(screen.split())


def test_lines_stand_above_the_status_with_who_said_them() -> None:
    said = (OutputLine("rank 1", "[bold]no markup[/bold] :smile:"), OutputLine(KUNGFU, "view 1: 2 peers train"))
    screen = bare(painted([ScreenUpdate((), 0, JOB), ScreenUpdate(said, 700, JOB)]))
    assert "[rank 1] [bold]no markup[/bold] :smile:\nkungfu: view 1: 2 peers train\n" in screen
    assert screen.rindex("step 1,204") > screen.index("view 1") > screen.index("700 lines are not shown here")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_a_value_stands_beside_its_name_and_no_line_is_wider_than_the_terminal(width: int) -> None:
    progress = {"samples": 1_978_100, "epoch": 198, "epochs": 2000, "samples_left": 18_021_900}
    far = measured(19_781, progress=progress, samples_per_s=700.0, noise_scale=3612.0, learning_rate=0.05)
    screen = bare(painted([ScreenUpdate((), 0, JOB.after_step(far))], width=width))
    lines = screen.replace("\r", "\n").splitlines()
    for words in ("samples/s 700", "noise scale 3,612", "learning rate 0.0500", "batch 32"):
        assert any(words in line for line in lines), words
    assert max(len(line) for line in lines) <= width


def test_the_cursor_is_given_back() -> None:
    screen = painted([ScreenUpdate((), 0, JOB)])
    assert screen.index(HIDE) < screen.rindex(SHOW)
    assert HIDE not in screen[screen.rindex(SHOW) :]


def shown(*update: tuple[float, ScreenUpdate]) -> list[str]:
    """The lines of a screen that is told `update` at these seconds."""
    out, seconds = io.StringIO(), iter([0.0, *(at for at, _ in update)])
    screen = screens.PlainScreen(out, clock=lambda: next(seconds), now=lambda: 150.0)
    screen.open()
    for _, one in update:
        screen.show(one)
    screen.close()
    return out.getvalue().splitlines()


def test_each_line_says_who_said_it() -> None:
    said = OutputLine("rank 0", "hello"), OutputLine(KUNGFU, "view 1: 2 peers train")
    assert shown((0.1, ScreenUpdate(said, 700, Job())), (60.0, ScreenUpdate((), 0, Job()))) == [
        "kungfu: 700 lines are not shown here; the log files have them",
        "[rank 0] hello",
        "kungfu: view 1: 2 peers train",
    ], "and no status before the first step"


def test_the_status_is_told_every_five_seconds_at_most_and_only_after_a_step() -> None:
    seconds_and_steps = ((4.9, 1), (5.0, 2), (6.0, 3), (9.9, 4), (10.0, 5), (20.0, 5))
    lines = shown(*((at, ScreenUpdate((), 0, Job().after_step(measured(step)))) for at, step in seconds_and_steps))
    assert [line.split(" | ")[0] for line in lines] == ["kungfu: step 2", "kungfu: step 5"]


@pytest.mark.parametrize(
    "printed", ["Epoch 1/40", "23/23 - 1s - 45ms/step - loss: 1.6", "12/23 \u2501\u2501 0s 9ms/step"]
)
def test_beside_a_fit_that_prints_its_progress_a_status_comes_every_thirty_seconds(printed: str) -> None:
    def at(step: int, **progress: int) -> Job:
        return Job().after_step(measured(step, progress={"samples": step, **progress}))

    seconds, said = (5.0, 29.9, 30.0, 35.0, 60.0), (OutputLine("rank 0", printed),)
    fits = [(second, ScreenUpdate((), 0, at(round(second), fit=1))) for second in seconds]
    lines = shown((0.0, ScreenUpdate(said, 0, Job())), *fits)
    assert [line.split(" | ")[0] for line in lines[1:]] == ["kungfu: step 30", "kungfu: step 60"]
    silent = shown((0.0, ScreenUpdate((OutputLine("rank 0", "hello 1/2"),), 0, Job())), *fits)
    assert len(silent[1:]) == 5 - 1, "29.9 s and 30 s are too near"
    loop = shown(
        (0.0, ScreenUpdate(said, 0, Job())), *((second, ScreenUpdate((), 0, at(round(second)))) for second in seconds)
    )
    assert len(loop[1:]) == 5 - 1, "a loop of one's own"


def test_a_decision_is_part_of_the_status_once() -> None:
    first, second = shown((5.0, ScreenUpdate((), 0, JOB)), (10.0, ScreenUpdate((), 0, JOB.after_step(measured(1209)))))
    assert first.endswith(f"last decision: {DECIDED} | 1 starting for 40 s")
    assert "decision" not in second
    assert second.endswith(" | 1 starting for 40 s"), "as long as it is so"
