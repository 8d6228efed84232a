"""How a job's end is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from kungfu.cli.console.exit_summary import exit_summary, fitted
from kungfu.runtime.core.failure import Failure
from tests.cli.console.test_log_filter import NOISE

FOLDER = Path("runs/a")


def test_a_failure_is_told_from_the_cause_to_the_exit_code_without_the_noise() -> None:
    text = "rank 1 (peer 1): exit code 1: ValueError: bad"
    failure = Failure(1, text, 1, (*NOISE, "Traceback", "ValueError: bad", ""))
    assert exit_summary(1, failure, folder=FOLDER) == [
        f"kungfu-run: failed: {text}",
        "  its last output:",
        "  | Traceback",
        "  | ValueError: bad",
        "  all it printed: runs/a/peers/peer-1.log; how it came to that: kungfu why runs/a",
        "  exit code 1: a peer's program failed or was killed",
    ]
    assert exit_summary(1, Failure(0, "rank 0", 1, NOISE), folder=FOLDER)[1] == "  it printed nothing"


def test_a_failure_of_no_one_peer_names_the_folder_of_all_logs() -> None:
    lines = exit_summary(3, Failure(-1, "waited 60 s for rank 0", 3), folder=FOLDER)
    assert lines[0] == "kungfu-run: failed: waited 60 s for rank 0"
    assert "runs/a/peers/;" in lines[1]
    assert lines[-1].startswith("  exit code 3: a wait ended at its deadline")


def test_a_long_last_output_is_cut_at_its_beginning() -> None:
    lines = exit_summary(1, Failure(0, "rank 0", 1, tuple(f"line {n}" for n in range(60))), folder=FOLDER)
    assert lines[2] == "  | line 20"
    assert lines[-3] == "  | line 59"


def test_a_good_end_and_an_ordered_end_are_one_line() -> None:
    over, pace = "kungfu-run: training is over; what was decided, and why: kungfu why runs/a", "a step took 21 ms"
    assert exit_summary(0, None, folder=FOLDER) == [over]
    assert exit_summary(0, None, folder=FOLDER, totals=[pace]) == [over, f"  {pace}"]
    ordered = "kungfu-run: ended by Ctrl-C; the record so far: kungfu why runs/a"
    assert exit_summary(130, None, folder=FOLDER) == [ordered]
    assert "exit code 129" in exit_summary(129, None, folder=FOLDER)[0]


def test_a_code_that_the_program_chose_is_not_taken_for_one_of_ours() -> None:
    failure = Failure(1, "rank 1 (peer 1): exit code 3", 3, chosen=True)
    assert exit_summary(3, failure, folder=FOLDER)[-1] == "  exit code 3: the program's own, by sys.exit(3)"


def test_the_last_line_says_that_peers_were_lost_to_exceptions_however_the_job_ended() -> None:
    raised = {1: "OSError: disk (train.py:42)", 4: "ValueError: wide (train.py:9)"}
    last = (
        "kungfu-run: 2 peers were lost to an exception of the program on the way, the first of them: peer 1: "
        "OSError: disk (train.py:42); all it printed: runs/a/peers/peer-1.log"
    )
    assert exit_summary(0, None, folder=FOLDER, totals=["a step took 21 ms"], raised=raised)[-1] == last
    assert exit_summary(130, None, folder=FOLDER, raised=raised)[-1] == last
    failed = exit_summary(2, Failure(4, "rank 1 (peer 4)", 2), folder=FOLDER, raised=raised)
    assert failed[-1].startswith("kungfu-run: 1 peer was lost to an exception of the program on the way: peer 1:")


@pytest.mark.parametrize("width", [60, 80])
def test_on_a_terminal_no_word_and_no_command_is_broken_and_elsewhere_no_line(width: int) -> None:
    error = "its program raised ValueError: cannot reshape array of size 12 into shape (5, 2) (train.py:41)"
    failure = Failure(1, f"rank 1 (peer 1): {error}", 1, output=("x" * 100,))
    lines = exit_summary(1, failure, folder=Path("runs/20261123-123456"))
    for line in lines:
        assert fitted(line, width=None).plain == line
        shown = fitted(line, width=width).plain.split("\n")
        if line.startswith("  | "):
            assert shown == [line], "what a peer has printed"
        else:
            assert " ".join(" ".join(shown).split()) == " ".join(line.split())
            assert max(map(len, shown)) <= width
            assert [one[:4].strip() for one in shown[1:]] == [""] * (len(shown) - 1), "they are seen to go on"
    whole = "\n".join(fitted(line, width=width).plain for line in lines)
    assert "kungfu why runs/20261123-123456" in whole
