"""The test of a commit: the point at which a leader may act on a state that it replicates.

The outcome is a pure function of the acknowledgements and of the time; ``replication`` sends the state and waits.

| the followers                                              | a quorum holds the state | outcome                     |
| ---------------------------------------------------------- | ------------------------ | --------------------------- |
| all have acknowledged it                                   | any                      | committed: the leader acts, |
|                                                            |                          | no earlier state counts     |
| some are lost, all others have acknowledged it             | yes                      | quorum: the leader acts     |
| some are late, for at most ``patience_s``                  | yes                      | wait for the late followers |
| some are late, all of them for longer                      | yes                      | quorum: the leader acts     |
| some are late                                              | no                       | wait: each will acknowledge |
|                                                            |                          | the state, or be lost       |
| some are lost, all others have acknowledged it             | no                       | no quorum: the leader leaves|

A lost host stops being a follower only if the others are a quorum without it, and a host that leaves only when it runs
no peer any more. So the followers that are left are always enough together.

A follower is late from the moment at which the oldest state that it has not acknowledged was sent. So a change of view,
which takes several states, waits for a late follower once and not once for each state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["committed", "quorum", "wait", "no quorum"]


@dataclass(frozen=True)
class FollowerProgress:
    """The acknowledgements of one follower.

    Args:
        acknowledged: The newest version that the follower has acknowledged.
        late_since: The time at which the oldest unacknowledged state was sent; infinite if there is none.
        is_lost: True if the follower is lost: it does not answer, or follows another leader.
    """

    acknowledged: int = 0
    late_since: float = math.inf
    is_lost: bool = False


def commit_outcome(
    version: int,
    followers: Mapping[int, FollowerProgress],
    *,
    leader: int,
    is_quorum: Callable[[frozenset[int]], bool],
    now: float,
    patience_s: float,
) -> Outcome:
    """Tests if a leader may act on a state; see the table of this module.

    Args:
        version: The version of the state, the newest one.
        followers: The progress of all followers, by host.
        leader: The host of the leader, which holds the state.
        is_quorum: True if the given hosts are a quorum under every cluster that may be in force.
        now: The time, in seconds.
        patience_s: The seconds for which a late follower is waited for although a quorum holds the state.
    """
    holders = {host for host, one in followers.items() if one.acknowledged >= version}
    if len(holders) == len(followers):
        return "committed"
    has_quorum = is_quorum(frozenset({leader, *holders}))
    late = [one for host, one in followers.items() if host not in holders and not one.is_lost]
    # Without a quorum any late follower may complete it.
    if late and (not has_quorum or any(now - one.late_since <= patience_s for one in late)):
        return "wait"
    return "quorum" if has_quorum else "no quorum"
