"""One round of an election: the next action of an agent that has lost its leader, from the replies to its pre-vote.

The action is a pure function of an `ElectionRound`; ``election`` requests the votes and performs the action. The
*pre-votes* of a host are the replies from members of the job that have lost the leader too.

| the replies to the pre-vote of this host                     | action of this host                                   |
| ------------------------------------------------------------ | ----------------------------------------------------- |
| a host with a newer log does not count this host as a member | stop: the job has continued without this host         |
| a quorum of pre-votes; no member hears the leader, and no    | stand for election                                    |
| lower host has a quorum of pre-votes                         |                                                       |
| a quorum of pre-votes; a member still hears the leader       | wait until that member has lost the leader too: it    |
|                                                              | would not follow another one, and be declared lost    |
| a quorum of pre-votes; a lower host has a quorum too         | wait for the lower host: two candidates might split   |
|                                                              | the votes                                             |
| a quorum of pre-votes; a lower host has not counted its own  | wait for its count, for at most ``--heartbeat``       |
| a quorum of pre-votes; this host has voted for another one   | wait for its messages, for at most ``--heartbeat``    |
| no quorum of pre-votes; or this host is off the list         | wait for a leader                                     |
| the round is not quorate, after the deadline                 | stop: the others may have continued                   |

The lowest host among *those with a quorum of pre-votes* stands. The lowest host among those that answer would not do:
if it reaches some hosts but no quorum, it never wins, and a connected quorum of others would wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kungfu.runtime.agent.consensus.state import FollowerLog
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.placement import has_majority
from kungfu.runtime.ipc import messages_pb2 as pb


def has_quorum(clusters: Sequence[Cluster], hosts: frozenset[int]) -> bool:
    """True if ``hosts`` are a quorum of the view in each of ``clusters``; False before the first view."""
    return bool(clusters) and all(
        one.view is not None and has_majority(one.view, one.hosts.of, hosts) for one in clusters
    )


@dataclass(frozen=True)
class Tally:
    """The result of a count of votes.

    Args:
        log: The newest log among the voters.
        voters: The counted hosts that vote for this host, including its own, all of them members according to ``log``.
    """

    log: FollowerLog
    voters: frozenset[int]

    @property
    def is_quorum(self) -> bool:
        """True if the voters are a quorum under every cluster that may be in force."""
        return has_quorum(self.log.possible_clusters, self.voters)


def count_votes(host: int, log: FollowerLog, votes: Mapping[int, pb.VoteReply]) -> Tally:
    """Counts the votes for ``host``, which holds ``log``, under the newest log among the voters.

    If they are no quorum under that log, its holders are not counted, as if their replies were lost: without them the
    others may be a quorum under an older log, and then no quorum holds the newest one.
    """
    newest = max(votes.values(), key=lambda vote: (vote.term, vote.version), default=None)
    # No voter holds a newer state.
    if newest is None or (newest.term, newest.version) <= (log.term, log.version):
        return Tally(log, log.members & {host, *votes})
    # The membership of the newest state counts, so this host adopts the state before it counts the quorum.
    adopted = log.with_state(newest.term, newest.version, newest.state, newest.requests)
    tally = Tally(adopted, adopted.members & {host, *votes})
    if tally.is_quorum:
        return tally
    older = {one: vote for one, vote in votes.items() if (vote.term, vote.version) < (newest.term, newest.version)}
    without = count_votes(host, log, older)
    return without if without.is_quorum else tally


@dataclass(frozen=True)
class Stand:
    """The action of a candidate: requests the votes of the ``voters`` in ``term``: of all members that it reaches, and
    of all hosts with the newest state."""

    term: int
    voters: frozenset[int]


@dataclass(frozen=True)
class GiveUp:
    """The action of a host that cannot take part any more; ``why`` is the reason."""

    why: str


Action = Stand | GiveUp | Literal["wait", "fenced", "no quorum"]


@dataclass(frozen=True)
class ElectionRound:
    """The input of the decision: the replies to a pre-vote, and the times of this election on this host's clock.

    Args:
        host: The number of this host.
        log: The log of this host when it requested the votes.
        votes: The replies to the pre-vote, by host.
        now: The time at which this round has begun.
        began: The time at which the first round has begun.
        quorate_at: The beginning of the last round that `is_quorate`, or else of the first round.
        voted_term: The last term in which this host has voted.
        voted_at: The time of the last vote for another host; that host gets time to lead.
        heartbeat_s: The value of ``--heartbeat``, in seconds.
    """

    host: int
    log: FollowerLog
    votes: Mapping[int, pb.VoteReply]
    now: float
    began: float
    quorate_at: float
    voted_term: int
    voted_at: float
    heartbeat_s: float

    @property
    def pre_votes(self) -> Tally:
        """The count of the hosts that have lost the leader too."""
        lost = {host: vote for host, vote in self.votes.items() if not vote.hears_leader and not vote.fenced}
        return count_votes(self.host, self.log, lost)

    @property
    def is_quorate(self) -> bool:
        """True if this host may belong to a quorum: its pre-votes are one, or, for four times ``--heartbeat``, a quorum
        of members has answered. Those that still hear the leader lose it too, or the leader declares this host lost."""
        if self.pre_votes.is_quorum:
            return True
        members = {host: vote for host, vote in self.votes.items() if not vote.fenced}
        has_time = self.now - self.began <= 4 * self.heartbeat_s
        return has_time and count_votes(self.host, self.log, members).is_quorum

    @property
    def deadline(self) -> float:
        """The time after which this host stops: twice ``--heartbeat`` after the last round that `is_quorate`, or after
        the last vote for another host; votes count for four times ``--heartbeat`` from the first round on."""
        voted_at = min(self.voted_at, self.began + 4 * self.heartbeat_s)
        return max(self.quorate_at, voted_at) + 2 * self.heartbeat_s

    def is_rival(self, host: int, vote: pb.VoteReply) -> bool:
        """True if a host may be the candidate instead of this host: a lower host with a quorum of pre-votes. A host
        that has not counted its pre-votes is given ``--heartbeat`` to do so."""
        is_unknown = not vote.HasField("has_quorum") and self.now - self.began <= self.heartbeat_s
        return host < self.host and (vote.has_quorum or is_unknown)


def next_action(at: ElectionRound) -> Action:
    """Decides on the action of a host after its pre-vote; see the table of this module."""
    if any(vote.fenced for vote in at.votes.values()):
        return "fenced"
    if at.now > at.deadline and not at.is_quorate:
        return "no quorum"
    tally = at.pre_votes
    others = {host: vote for host, vote in at.votes.items() if host in tally.log.members}
    is_heard = any(vote.hears_leader for vote in others.values())
    has_rival = any(at.is_rival(host, vote) for host, vote in others.items())
    has_voted = at.now - at.voted_at <= at.heartbeat_s
    # A host that is off the list does not lead: the others do not ask for its vote.
    is_off = at.host not in tally.log.members
    if not tally.is_quorum or is_off or is_heard or has_rival or has_voted:
        return "wait"
    # A host that its own, newest state takes off the list is asked for that state.
    newest = tally.log.term, tally.log.version
    voters = others | {host: vote for host, vote in at.votes.items() if (vote.term, vote.version) == newest}
    # A voter, this host too, refuses terms up to the last one in which it has followed or voted.
    term = max([at.log.term, at.voted_term, *(vote.voted_term for vote in voters.values())]) + 1
    return Stand(term, frozenset(voters))
