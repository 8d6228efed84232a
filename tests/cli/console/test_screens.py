"""The live screen, painted on a console in memory, and plain lines."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from kungfu.cli.console.screen_state import KUNGFU, OutputLine, ScreenUpdate
from kungfu.cli.console.screens import LiveScreen, PlainScreen
from kungfu.event_log.job import Job, fold
from tests.cli.recorded import GROWN, measured

JOB = fold(GROWN[:6]).after_step(measured(1204, loss=None))
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def painted(update: Sequence[ScreenUpdate], *, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=24, color_system="standard", _environ={})
    screen = LiveScreen(console, clock=lambda: 0.0)
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
    assert "last decision: step 50, gns_batch: 2 -> 3 peers, under way" in screen


def test_lines_stand_above_the_status_with_who_said_them() -> None:
    said = (OutputLine("rank 1", "[bold]no markup[/bold] :smile:"), OutputLine(KUNGFU, "view 1: 2 peers train"))
    screen = bare(painted([ScreenUpdate((), 0, JOB), ScreenUpdate(said, 700, JOB)]))
    assert "[rank 1] [bold]no markup[/bold] :smile:\nkungfu: view 1: 2 peers train\n" in screen
    assert screen.rindex("step 1,204") > screen.index("view 1") > screen.index("700 lines are not shown here")


@pytest.mark.parametrize("width", [20, 40, 200])
def test_no_line_of_the_status_is_wider_than_the_terminal(width: int) -> None:
    lines = bare(painted([ScreenUpdate((), 0, JOB)], width=width)).replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines) <= width
    assert any("noise scale 3,612" in line for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_value_stands_beside_its_name_whatever_the_width(width: int) -> None:
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
    screen = PlainScreen(out, clock=lambda: next(seconds))
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


def test_a_decision_is_part_of_the_status_once() -> None:
    first, second = shown((5.0, ScreenUpdate((), 0, JOB)), (10.0, ScreenUpdate((), 0, JOB.after_step(measured(1209)))))
    assert first.endswith("last decision: step 50, gns_batch: 2 -> 3 peers, under way")
    assert "decision" not in second
