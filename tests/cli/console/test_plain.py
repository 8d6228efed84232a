"""Plain lines, where there is no terminal."""

from __future__ import annotations

import io

from kungfu.cli.console import PlainScreen, Status
from kungfu.cli.console.board import KUNGFU, News, Said
from tests.cli.recorded import measured


def shown(*news: tuple[float, News]) -> list[str]:
    """The lines of a screen that is told `news` at these seconds."""
    out, seconds = io.StringIO(), iter([0.0, *(at for at, _ in news)])
    screen = PlainScreen(out, clock=lambda: next(seconds))
    screen.open()
    for _, one in news:
        screen.show(one)
    screen.close()
    return out.getvalue().splitlines()


def at_step(step: int, *said: Said, dropped: int = 0) -> News:
    return News(said, dropped, Status(decision="none yet", step=measured(step)))


def test_each_line_says_who_said_it() -> None:
    assert shown((0.1, at_step(1, Said("rank 0", "hello"), Said(KUNGFU, "view 1: 2 peers train")))) == [
        "[rank 0] hello",
        "kungfu: view 1: 2 peers train",
    ]


def test_the_status_is_told_every_five_seconds_at_most_and_only_after_a_step() -> None:
    seconds_and_steps = ((4.9, 1), (5.0, 2), (6.0, 3), (9.9, 4), (10.0, 5), (20.0, 5))
    lines = shown(*((at, at_step(step)) for at, step in seconds_and_steps))
    assert [line.split(" | ")[0] for line in lines] == ["kungfu: step 2", "kungfu: step 5"]


def test_before_the_first_step_there_is_no_status() -> None:
    assert shown((60.0, News((), 0, Status()))) == []


def test_a_decision_is_part_of_the_status_once() -> None:
    decided = Status(decision="step 1, grow: 2 -> 3 peers, under way", step=measured(3))
    later = Status(decision=decided.decision, step=measured(9))
    first, second = shown((5.0, News((), 0, decided)), (10.0, News((), 0, later)))
    assert first.endswith("last decision: step 1, grow: 2 -> 3 peers, under way")
    assert "decision" not in second


def test_dropped_lines_are_owned_up_to() -> None:
    assert shown((0.1, at_step(1, Said("rank 0", "x"), dropped=700)))[0] == (
        "kungfu: 700 lines are not shown here; the log files have them"
    )
