"""The point at which a leader may act on a state, row by row of the table."""

from __future__ import annotations

import pytest

from kungfu.runtime.agent.consensus.commit import FollowerProgress, Outcome, commit_outcome

HOLDS, LATE, LATER = FollowerProgress(7), FollowerProgress(6, late_since=96.0), FollowerProgress(6, late_since=94.0)
LOST, LOST_WITH_IT = FollowerProgress(6, late_since=94.0, is_lost=True), FollowerProgress(7, is_lost=True)


@pytest.mark.parametrize(
    ("followers", "outcome"),
    [
        ((HOLDS, HOLDS), "committed"), ((HOLDS, LOST_WITH_IT), "committed"), ((HOLDS, LOST), "quorum"),
        ((HOLDS, LATE), "wait"), ((HOLDS, LATER), "quorum"), ((HOLDS, LATER, LATE), "wait"), ((LATER, LATER), "wait"),
        ((LATER, LOST), "wait"), ((LOST, LOST), "no quorum"), ((), "committed"),
    ],
)  # fmt: skip
def test_a_leader_acts_once_a_quorum_holds_the_state(followers: tuple[FollowerProgress, ...], outcome: Outcome) -> None:
    def is_quorum(hosts: frozenset[int]) -> bool:
        assert 0 in hosts, "the leader holds its own state"
        return len(hosts) > 1

    found = commit_outcome(7, dict(enumerate(followers, 1)), leader=0, is_quorum=is_quorum, now=100.0, patience_s=5.0)
    assert found == outcome
