"""Tracebacks of several peers: the first in full, an equal one in a line, and no line lost."""

from __future__ import annotations

from itertools import chain, zip_longest

from kungfu.cli.console.repeated_errors import RepeatedErrors

BEGIN = "Traceback (most recent call last):"
ERROR = [BEGIN, '  File "train.py", line 7, in <module>', "    step(batch)", "ValueError: wrong"]
CHAINED = [
    *ERROR,
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    *ERROR[:3],
    "KeyError: 3",
]


class Screen(RepeatedErrors):
    """What is shown, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self.now = 0.0
        super().__init__(lambda source, text: self.shown.append((source, text)), clock=lambda: self.now)

    def print(self, source: str, lines: list[str]) -> None:
        for text in lines:
            self.line(source, text)

    def of(self, source: str) -> list[str]:
        return [text for one, text in self.shown if one == source]


def test_an_equal_traceback_is_one_line_that_names_the_first_peer_and_the_error() -> None:
    screen = Screen()
    for rank in range(3):
        screen.print(f"rank {rank}", ["step 7", *ERROR])
    screen.release_all()
    assert screen.of("rank 0") == ["step 7", *ERROR]
    assert screen.of("rank 1") == ["step 7", "the same 4 lines as rank 0: ValueError: wrong"]
    assert screen.of("rank 2") == ["step 7", "the same 4 lines as rank 0: ValueError: wrong"]


def test_peers_that_print_by_turns_are_compared_line_by_line() -> None:
    screen = Screen()
    pairs = zip_longest([("rank 0", one) for one in CHAINED], [("rank 1", one) for one in CHAINED])
    for source, text in chain.from_iterable(pairs):
        screen.line(source, text)
    screen.release_due()
    assert screen.of("rank 1") == [], "a moment later there may be more"
    screen.now = 1.0
    screen.release_due()
    assert screen.of("rank 0") == CHAINED
    assert screen.of("rank 1") == [f"the same {len(CHAINED)} lines as rank 0: KeyError: 3"], "the unhandled one"


def test_a_chained_traceback_whose_second_half_differs_is_shown_in_full() -> None:
    screen = Screen()
    other = [*CHAINED[:-1], "OSError: 5"]
    screen.print("rank 0", CHAINED)
    screen.print("rank 1", other)
    assert screen.of("rank 1") == other


def test_a_traceback_that_differs_is_shown_in_full_and_compared_with_the_next() -> None:
    screen = Screen()
    other = [*ERROR[:1], '  File "train.py", line 9, in <module>', "KeyError: 3"]
    screen.print("rank 0", ERROR)
    screen.print("rank 1", other)
    screen.print("rank 2", other)
    screen.release_all()
    assert screen.of("rank 1") == other
    assert screen.of("rank 2") == ["the same 3 lines as rank 1: KeyError: 3"]


def test_what_a_peer_prints_after_an_equal_traceback_is_shown() -> None:
    screen = Screen()
    screen.print("rank 0", [*ERROR, "loss 0.25"])
    screen.print("rank 1", [*ERROR, "loss 0.50", "the end"])
    assert screen.of("rank 1") == ["the same 4 lines as rank 0: ValueError: wrong", "loss 0.50", "the end"]


def test_a_half_traceback_is_shown_after_a_second_and_nothing_is_held_for_long() -> None:
    screen = Screen()
    screen.print("rank 0", ERROR)
    screen.print("rank 1", ERROR[:2])
    screen.now = 0.9
    screen.release_due()
    assert screen.of("rank 1") == []
    screen.now = 1.0
    screen.release_due()
    assert screen.of("rank 1") == ERROR[:2]
    screen.print("rank 2", ERROR)
    for number in range(6):
        screen.now += 0.5
        screen.line("rank 2", f"still here {number}")
        screen.release_due()
    assert screen.of("rank 2")[0] == "the same 4 lines as rank 0: ValueError: wrong"
    assert screen.of("rank 2")[1:] == [f"still here {number}" for number in range(6)]


def test_the_error_of_a_peer_that_prints_no_more_is_decided_by_the_next_line() -> None:
    screen = Screen()
    screen.print("rank 0", ERROR)
    screen.print("rank 1", [*ERROR, "loss 0.50"])
    assert screen.of("rank 1") == ["the same 4 lines as rank 0: ValueError: wrong", "loss 0.50"]


def test_nothing_is_held_for_long_while_nobody_releases_it() -> None:
    screen = Screen()
    half, more = ERROR[:2], [f"    {number}" for number in range(400)]
    screen.print("rank 0", half)
    screen.print("rank 1", [*half, *more])
    assert screen.of("rank 1") == [*half, *more]
    screen.print("rank 2", half)
    screen.now = 3.0
    screen.line("rank 2", more[0])
    assert screen.of("rank 2") == [*half, more[0]]


def test_a_peer_that_raises_the_same_again_shows_it_again() -> None:
    screen = Screen()
    screen.print("rank 0", [*ERROR, *ERROR])
    assert screen.of("rank 0") == [*ERROR, *ERROR]
