"""Of several bad ends, which is the root. The outputs are what Python's interpreter prints last."""

from __future__ import annotations

import pytest

from kungfu.runtime.core.failure import EXIT_CODES, ExitKind, Failure, find_root_cause

LOST = ["Traceback (most recent call last):", "kungfu.errors.PeerFailure: lost rank 1 (peer 1)"]
WAITED = ["kungfu.errors.DeadlineExceeded: waited 60.0 s at barrier 3 for rank 1"]
RAISED = ["Traceback (most recent call last):", "ValueError: no such layer"]
USAGE = ["kungfu.errors.PolicyError: rescale takes an agreed signal; write ops.all_reduce(x)"]
RANKS, FAILED, KILLED = {0: 0, 1: 1}, "exit code 1", "killed by SIGKILL"
# The reported exit of a peer, by the last line that it printed; the others were killed before they could report.
KINDS: dict[str, ExitKind] = {LOST[-1]: "loss", WAITED[-1]: "deadline", RAISED[-1]: "exception", USAGE[-1]: "usage"}


def root(tails: dict[int, list[str]], *, first: int = 0, late: bool = False, **ended: str) -> Failure:
    ends = dict.fromkeys(tails, FAILED) | {int(peer[1:]): how for peer, how in ended.items()}
    reported = {peer: KINDS[tail[-1]] for peer, tail in tails.items() if tail and tail[-1] in KINDS}
    return find_root_cause(ends, tails, ranks=RANKS, first=first, late=late, exit_kinds=reported)


@pytest.mark.parametrize(
    ("tails", "first", "peer"),
    [
        ({0: LOST, 1: RAISED}, 0, 1),  # an error of its own before a loss
        ({0: LOST, 1: []}, 0, 1),  # a silent death before a loss
        ({0: WAITED, 1: LOST}, 0, 1),  # a loss before a wait
        ({0: WAITED, 1: RAISED, 2: LOST}, 2, 1),  # its own error before both, though it was not the first to be seen
        ({0: RAISED, 1: RAISED}, 1, 1),  # the first of two like ones
        ({0: LOST, 1: LOST}, 1, 1),
        ({0: WAITED, 1: WAITED}, 0, 0),
    ],
)
def test_the_root_is_the_end_that_no_other_explains(tails: dict[int, list[str]], first: int, peer: int) -> None:
    assert root(tails, first=first).peer == peer


def test_errors_of_libraries_are_the_peers_own() -> None:
    graph = ["tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:"]
    found = root({0: LOST, 1: graph})
    assert (found.peer, found.text) == (1, f"rank 1 (peer 1): exit code 1: {graph[0]}")


def test_the_headline_and_the_whole_output_come_along() -> None:
    found = root({2: RAISED}, first=2)
    assert found == Failure(2, "peer 2: exit code 1: ValueError: no such layer", 1, tuple(RAISED))


def test_what_the_agent_lost_yields_to_the_end_that_explains_it() -> None:
    lost = {-1: "lost rank 1 (peer 1) to take Admit: connection refused"}
    found = find_root_cause(lost | {1: KILLED}, {1: []}, ranks=RANKS, first=-1, late=False, exit_kinds={})
    assert (found.peer, found.text, found.code) == (1, f"rank 1 (peer 1): {KILLED}", 1)
    alone = find_root_cause(lost, {}, ranks=RANKS, first=-1, late=False, exit_kinds={})
    assert (alone.peer, alone.text, alone.code) == (-1, lost[-1], 1)


@pytest.mark.parametrize(
    ("ended", "tails", "exit_kinds", "text", "code"),
    [
        # a loss while the first view was formed yields to the peer that ended
        ({0: "lost rank 1, about to install view 1", 1: "exit code 0"}, {}, {0: "loss"}, "exit code 0", 1),
        # a peer that was killed, whatever it had printed before
        ({0: FAILED, 1: KILLED}, {0: LOST, 1: LOST}, {0: "loss"}, f"{KILLED}: {LOST[1]}", 1),
        # what a peer reported counts, and not what it printed
        ({0: FAILED, 1: FAILED}, {0: RAISED, 1: LOST}, {0: "loss", 1: "usage"}, f"{FAILED}: {LOST[1]}", 2),
    ],
)
def test_reports_decide_and_outputs_do_not(
    ended: dict[int, str], tails: dict[int, list[str]], exit_kinds: dict[int, ExitKind], text: str, code: int
) -> None:
    found = find_root_cause(ended, tails, ranks=RANKS, first=0, late=False, exit_kinds=exit_kinds)
    assert (found.peer, found.text, found.code) == (1, f"rank 1 (peer 1): {text}", code)


@pytest.mark.parametrize(
    ("tail", "how", "late", "code"),
    [
        (RAISED, FAILED, False, 1),
        ([], KILLED, False, 1),
        (LOST, FAILED, False, 1),
        (USAGE, FAILED, False, 2),
        (WAITED, FAILED, False, 3),
        ([], "waited 300 s for peer 0; it has called kf.attach()", True, 3),
    ],
)
def test_the_exit_code_says_who_has_to_act(tail: list[str], how: str, late: bool, code: int) -> None:
    assert root({0: tail}, late=late, p0=how).code == code
    assert code in EXIT_CODES
