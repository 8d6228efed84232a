"""The board between the job's threads and the painter."""

from __future__ import annotations

import threading
import time

from kungfu.cli.console.board import Board, Said
from tests.cli.recorded import GROWN, measured


def test_what_was_said_is_taken_once_and_in_order() -> None:
    board = Board()
    board.say(Said("rank 0", "one"))
    board.say(Said("rank 1", "two"))
    assert [said.text for said in board.take().said] == ["one", "two"]
    assert board.take().said == ()


def test_of_a_flood_the_newest_lines_are_kept_and_the_others_counted() -> None:
    board = Board()
    for number in range(1200):
        board.say(Said("rank 0", str(number)))
    news = board.take()
    assert (len(news.said), news.dropped) == (500, 700)
    assert news.said[-1].text == "1199"
    assert board.take().dropped == 0


def test_the_status_is_the_newest_and_stays_when_it_is_taken() -> None:
    board = Board()
    board.event(GROWN[3])
    board.step(measured(3))
    board.step(measured(4))
    assert board.take().status.step["step"] == 4
    assert board.take().status.phase == "training"


def test_who_waits_is_woken_by_news_and_by_an_end_and_not_by_what_was_taken() -> None:
    board = Board()
    board.say(Said("rank 0", "one"))
    board.wait(60.0)
    board.take()
    threading.Timer(0.05, board.event, [GROWN[3]]).start()
    board.wait(60.0)
    assert board.take().status.phase == "training"
    threading.Timer(0.05, board.wake).start()
    board.wait(60.0)
    board.take()
    began = time.monotonic()
    board.wait(0.05)
    assert time.monotonic() - began >= 0.05
