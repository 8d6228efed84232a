"""The live status, on a terminal made of memory."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from kungfu.cli.console import LiveScreen, Status
from kungfu.cli.console.board import KUNGFU, News, Said
from tests.cli.recorded import measured

STATUS = Status("training", "step 50, gns_batch: 2 -> 3 peers, under way", measured(1204, loss=None))
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def painted(news: Sequence[News], *, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=24, color_system="standard", _environ={})
    screen = LiveScreen(console, clock=lambda: 0.0)
    screen.open()
    for one in news:
        screen.show(one)
    screen.close()
    return out.getvalue()


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\xa0", " ")


def test_the_status_shows_every_figure_and_what_is_unknown_as_such() -> None:
    screen = bare(painted([News((), 0, STATUS)]))
    for words in ("step 1,204", "samples/s 700", "peers 2", "batch 32", "loss -", "noise scale 3,612", " training, "):
        assert words in screen
    assert "last decision: step 50, gns_batch: 2 -> 3 peers, under way" in screen


def test_lines_stand_above_the_status_with_who_said_them() -> None:
    said = (Said("rank 1", "[bold]no markup[/bold] :smile:"), Said(KUNGFU, "view 1: 2 peers train"))
    screen = bare(painted([News((), 0, STATUS), News(said, 0, STATUS)]))
    assert "[rank 1] [bold]no markup[/bold] :smile:\nkungfu: view 1: 2 peers train\n" in screen
    assert screen.rindex("step 1,204") > screen.index("view 1")


@pytest.mark.parametrize("width", [20, 40, 200])
def test_no_line_of_the_status_is_wider_than_the_terminal(width: int) -> None:
    lines = bare(painted([News((), 0, STATUS)], width=width)).replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines) <= width
    assert any("noise scale 3,612" in line for line in lines)


def test_the_cursor_is_given_back() -> None:
    screen = painted([News((), 0, STATUS)])
    assert screen.index(HIDE) < screen.rindex(SHOW)
    assert HIDE not in screen[screen.rindex(SHOW) :]


def test_a_flood_is_owned_up_to() -> None:
    assert "700 lines are not shown here" in bare(painted([News((Said("rank 0", "x"),), 700, STATUS)]))
