"""The agreement on the leader of a job, and on its newest state, by an etcd.

The leader holds a lease, as in algorithm 1 of Amoeba (Shi et al., "Elastic deep learning in multi-tenant GPU clusters",
2021). A lease alone does not decide: a leader that stood still may believe in a lease that has ended. Therefore the
etcd also holds the set of the *holders*, the hosts that hold the newest state of the job, and only a holder can lead.

| key below ``kungfu/NAME/`` | lease       | value                                                                   |
| -------------------------- | ----------- | ----------------------------------------------------------------------- |
| ``leader``                 | the agent's | the job, the host, the address and the term of the leader                |
| ``holders``                | none        | the job, the term of its last leader, and the numbers of the holders;    |
|                            |             | none of them for a day after the end of the job                          |
| ``hosts/NUMBER``           | the agent's | the job of the agent on this host; empty while it is in none             |

Invariants
----------

*A leader acts on a state only if every holder holds it.* Before it acts on what a holder does not hold, the leader
strikes that host from the set by compare-and-swap; while the etcd does not answer, it does not act. A host that holds
the newest state again is added. Until it is certain that a host was struck, or was not added, the host counts as a
holder.

*Each change of the leader changes the set*: its term. So a leader that was replaced cannot strike anybody, and cannot
act either, because the new leader is a holder that does not acknowledge its states. No safety rests on time: a lease
only tells when another host may stand.

*The state itself is never in the etcd.* While all holders acknowledge, nothing is written to it, so that training and
changes go on while it is lost. A lease that ended meanwhile is granted again, and the leader campaigns anew.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from kungfu.runtime.agent.consensus.agreement import Claim
from kungfu.runtime.agent.consensus.consensus_service import may_be_up
from kungfu.runtime.agent.consensus.election import Elected
from kungfu.runtime.agent.consensus.election_round import Action, ElectionRound, GiveUp, Stand
from kungfu.runtime.agent.consensus.state import ConsensusState, listed_in, parse_request_log
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc.etcd import Entry, Etcd, StoreError
from kungfu.runtime.settings import Deadlines

_LEAST_LEASE_S = 2  # an etcd grants no shorter one
_OPEN_WITHIN_S = 5.0
_PROBE_S = 0.2  # a machine that is up refuses a connection at once
_OVER_S = 86_400  # a leader that stood still for less finds out that the job is over
_LEADER, _HOLDERS, _HOST = "leader", "holders", "hosts/"


class LeaderValue(msgspec.Struct, frozen=True):
    job: str
    host: int
    address: str
    term: int


class HoldersValue(msgspec.Struct, frozen=True):
    job: str
    term: int
    hosts: tuple[int, ...]


@dataclass(frozen=True)
class StoreRecord:
    """The entries of a job in the etcd; ``None`` for a key that does not exist.

    Args:
        leader: The leader, as long as its lease lasts.
        holders: The holders of the newest state.
        jobs: The job of each agent whose lease lasts, by host.
        entries: All entries, by key.
    """

    leader: LeaderValue | None
    holders: HoldersValue | None
    jobs: dict[int, str]
    entries: dict[str, Entry]

    def revision(self, key: str) -> int:
        """The revision of a key; 0 if it does not exist."""
        return self.entries[key].revision if key in self.entries else 0

    @property
    def has_holder(self) -> bool:
        """True if the agent of a holder, or of any host if the set is lost, is in the job, and its lease lasts."""
        if self.holders is None:
            return any(self.jobs.values())
        return any(self.jobs.get(host) == self.holders.job for host in self.holders.hosts)


_NOTHING = StoreRecord(None, None, {}, {})


def read_record(etcd: Etcd) -> StoreRecord:
    """Reads the entries of a job; raises ``StoreError`` if they cannot be read."""
    entries = etcd.read()
    leader, holders = entries.get(_LEADER), entries.get(_HOLDERS)
    numbers = {key: key.removeprefix(_HOST) for key in entries}
    try:
        return StoreRecord(
            msgspec.json.decode(leader.value, type=LeaderValue) if leader else None,
            msgspec.json.decode(holders.value, type=HoldersValue) if holders else None,
            {int(number): entries[key].value.decode() for key, number in numbers.items() if number != key},
            entries,
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreError(f"the etcd holds another program's keys under this job's name: {error}") from error


class StoreAgreement:
    """Asks an etcd who leads, and who can; see the module.

    Args:
        etcd: The keys of the job in the etcd.
        consensus: The consensus state of this agent.
        deadlines: The deadlines of the job; a lease ends ``--heartbeat`` after its last renewal.
        notify: Called by a thread with the error of the etcd, and with "" once it answers again.
    """

    def __init__(
        self, etcd: Etcd, consensus: ConsensusState, deadlines: Deadlines, *, notify: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._etcd, self._consensus, self._deadlines, self._notify = etcd, consensus, deadlines, notify
        self._lease_s = max(_LEAST_LEASE_S, math.ceil(deadlines.heartbeat_s))
        self._lease, self._registered = 0, ("", -1)  # the job, and the number, with which this host is registered
        # This host as it founds the job, without a list of hosts as number 0; ``None`` if it may only join one.
        self._number = max(0, consensus.host)
        self._founder = consensus.hosts.get(self._number)
        # All hosts that may be holders. If this leader's key has its present lease, these are exactly the holders.
        self._holders, self._leader_lease = frozenset[int](), 0
        self._is_replaced, self._error, self._loss = False, "", ""
        self._record = _NOTHING  # as last read for the founding or in an election
        self._absent_since, self._silent_at = math.inf, -math.inf
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_lease, name="kungfu-store-lease", daemon=True)

    def open(self) -> None:
        """Registers this host once it has a number, and keeps its lease from now on; raises ``StoreError`` if the etcd
        cannot be used."""
        until = time.monotonic() + _OPEN_WITHIN_S
        while True:
            try:
                self._register()
                break
            # It may be starting, like this job; or it does not run at all.
            except StoreError as error:
                if time.monotonic() > until:
                    how = f"`kungfu doctor --store etcd://{self._etcd.address}` checks it"
                    raise StoreError(f"{error} ({how})") from error
            time.sleep(0.2)
        self._thread.start()

    # ---- founding ----------------------------------------------------------------------------------------------------

    def found(self, job: str, job_exists: bool, is_silent: bool) -> int:
        """See ``Agreement``: the first host founds whose swap succeeds, once no leader and no holder is alive."""
        try:
            self._record, record = _NOTHING, read_record(self._etcd)
            self._record, now = record, time.monotonic()
            own = record.leader is not None and record.leader.job == job
            if self._founder is None:
                return 0
            if not own and (job_exists or record.leader is not None or record.has_holder):
                self._absent_since = math.inf
                return 0
            self._absent_since = min(self._absent_since, now)
            # After a freeze of the etcd, all leases have ended, until their agents have registered again.
            is_over = record.holders is None or not record.holders.hosts
            if not own and not is_over and now - self._absent_since <= self._lease_s:
                return 0
            term = (record.holders.term if record.holders else 0) + 1
            return self._lead(LeaderValue(job, self._number, self._founder.address, term), record, ())
        except StoreError:
            return 0

    def leader(self) -> tuple[str, str] | None:
        """See ``Agreement``."""
        leader = self._record.leader
        return None if leader is None else (leader.job, leader.address)

    def _lead(self, candidate: LeaderValue, record: StoreRecord, holders: Collection[int]) -> int:
        """Takes the lead by a swap, unless this agent has it already; returns the term, or 0."""
        hosts = frozenset({candidate.host, *holders})
        # The answer to the swap of an earlier attempt was lost: the next claim makes sure of the set.
        if record.leader is not None and (record.leader.job, record.leader.host) == (candidate.job, candidate.host):
            self._holders = hosts
            return record.leader.term
        return candidate.term if self._swap(record, candidate, hosts) else 0

    def _swap(self, record: StoreRecord, leader: LeaderValue, hosts: frozenset[int]) -> bool:
        """Replaces the set of holders, and the key of the leader unless it has the present lease; returns False if
        either is not as in ``record`` any more."""
        lease = self._lease
        values = {_HOLDERS: msgspec.json.encode(HoldersValue(leader.job, leader.term, tuple(sorted(hosts))))}
        # This leader is new; or its lease has ended, and it campaigns anew.
        if record.leader is None or record.entries[_LEADER].lease != lease:
            values[_LEADER] = msgspec.json.encode(leader)
        expected = {key: record.revision(key) for key in (_LEADER, _HOLDERS)}
        if not self._etcd.swap(expected, values, leased={_LEADER: lease}):
            return False
        self._holders, self._leader_lease = hosts, lease
        return True

    # ---- elections ---------------------------------------------------------------------------------------------------

    def next_action(self, at: ElectionRound, others: Mapping[int, Host]) -> Action:
        """See ``Agreement``.

        | the replies to the pre-vote, and the etcd                   | action of this host                            |
        | ----------------------------------------------------------- | ---------------------------------------------- |
        | a host with a newer log does not count this one as a member | stop: the job has continued without this host  |
        | the etcd does not answer                                    | wait, for at most ``--ready-deadline``         |
        | another host leads, or the lease of the lost leader lasts   | wait, and end the lease of an agent that ended |
        | this host is no holder; or a member still hears the leader  | wait                                           |
        | no leader; a quorum has replied, or all others have replied | stand                                          |
        | or ended, or ``--heartbeat`` has passed                     |                                                |
        | any but the second and the last, after the deadline         | stop                                           |
        """
        if any(vote.fenced for vote in at.votes.values()):
            return "fenced"
        try:
            record = self._record = read_record(self._etcd)
            if record.leader is not None and not self._is_own(record.leader, self._consensus.job):
                self._end_lease(record, others.get(record.leader.host))
        except StoreError as error:
            self._silent_at = at.now
            is_late = at.now - at.began > self._deadlines.ready_s
            return GiveUp(f"after {at.now - at.began:.0f} s {error}") if is_late else "wait"
        waited_s = at.now - max(at.began, self._silent_at)
        if self._may_stand(at, record, others, waited_s):
            assert record.holders is not None
            term = max(record.holders.term, self._consensus.term, at.voted_term) + 1
            return Stand(term, frozenset(at.votes))
        if waited_s <= self._lease_s + 2 * self._deadlines.heartbeat_s:
            return "wait"
        if record.leader is not None:
            return GiveUp(f"according to the etcd host {record.leader.host} leads, which is not heard here")
        return GiveUp("according to the etcd no host that answers holds the newest state of the job")

    def _may_stand(self, at: ElectionRound, record: StoreRecord, others: Mapping[int, Host], waited_s: float) -> bool:
        holders, snapshot = record.holders, at.log.snapshot
        is_holder = holders is not None and holders.job == self._consensus.job and at.host in holders.hosts
        # Before the first view there is nothing to continue.
        if not is_holder or snapshot is None or snapshot.cluster.view is None:
            return False
        if record.leader is not None:
            return self._is_own(record.leader, self._consensus.job)
        if any(vote.hears_leader for vote in at.votes.values()):
            return False
        if at.pre_votes.is_quorum or waited_s > at.heartbeat_s:
            return True
        # A host that may be up, but does not reply, may reach more hosts than this one.
        members = snapshot.cluster.hosts.known & others.keys()
        return not any(may_be_up(others[host], within_s=_PROBE_S) for host in members - at.votes.keys())

    def _leader_value(self, term: int) -> LeaderValue:
        consensus = self._consensus
        return LeaderValue(consensus.job, consensus.host, consensus.hosts[consensus.host].address, term)

    def _is_own(self, leader: LeaderValue, job: str) -> bool:
        return (leader.job, leader.host) == (job, self._consensus.host)

    def _end_lease(self, record: StoreRecord, host: Host | None) -> None:
        """Ends the lease of a leader whose port refuses: its agent has ended."""
        entry = record.entries[_LEADER]
        if host is not None and entry.lease and not may_be_up(host, within_s=_PROBE_S):
            with suppress(StoreError):  # it has ended in the meantime
                self._etcd.revoke(entry.lease)

    def stand(self, action: Stand, others: Mapping[int, Host]) -> Elected | None:
        """See ``Agreement``: the first holder whose swap succeeds leads."""
        consensus, record = self._consensus, self._record
        assert record.holders is not None
        try:
            term = self._lead(self._leader_value(action.term), record, record.holders.hosts)
        # The swap may have succeeded: the next round will tell.
        except StoreError:
            return None
        if not term or not consensus.become_leader(consensus.job, term):
            return None
        # From now on this agent acknowledges no state, so its log holds all that an earlier leader has acted on.
        log = consensus.log
        assert log.snapshot is not None
        listed = listed_in(log) or consensus.hosts
        reached = log.members & listed.keys() & {consensus.host, *action.voters}
        requests = parse_request_log(log.requests)
        return Elected(
            term, log.version, log.snapshot, requests, frozenset({consensus.host}), reached, log.possible_clusters
        )  # fmt: skip

    # ---- a leader ----------------------------------------------------------------------------------------------------

    def is_quorum(self, clusters: Sequence[Cluster], hosts: frozenset[int]) -> bool:
        """See ``Agreement``: any hosts with a peer are enough, once the others are struck from the set of holders. A
        leader that reaches no peer could only end the job, which the hosts that run the peers may continue."""
        members, of = clusters[-1].members, clusters[-1].hosts.of
        return not self._is_replaced and (not members or any(of.get(peer, 0) in hosts for peer in members))

    def claim(self, hosts: frozenset[int]) -> Claim:
        """See ``Agreement``: strikes and adds holders; asks the etcd only if the set must change.

        Cost:
            Two calls, of at most a second each, to change the set; else none.
        """
        if self._is_replaced:
            return "refused"
        is_safe, is_certain = self._holders <= hosts, self._leader_lease == self._lease
        # Nothing changes; or an addition, or the key of this leader, which can wait until the etcd answers.
        if is_safe and (self._error or (is_certain and self._holders == hosts)):
            return "granted"
        try:
            return self._change_holders(hosts)
        # The change may have been carried out.
        except StoreError as error:
            self._holders, self._leader_lease = self._holders | hosts, 0
            self._report(str(error))
            return "granted" if is_safe else "unknown"

    def _change_holders(self, hosts: frozenset[int]) -> Claim:
        record, own = read_record(self._etcd), (self._consensus.job, self._consensus.term)
        # Without the keys no host can lead; nor can this leader tell if it was replaced before they were lost.
        if record.holders is None:
            self._loss = "the etcd has lost the keys of this job"
            raise StoreError(self._loss)
        if (record.holders.job, record.holders.term) != own:
            self._is_replaced = True
            return "refused"
        return "granted" if self._swap(record, self._leader_value(self._consensus.term), hosts) else "unknown"

    # ---- leases ------------------------------------------------------------------------------------------------------

    def _keep_lease(self) -> None:
        while not self._closing.wait(self._lease_s / 4):
            # Others must not wait for a leader that decides nothing any more.
            if not self._consensus.hangs:
                self.keep_lease()

    def keep_lease(self) -> None:
        """Renews the lease once; called by a thread from ``open`` on."""
        try:
            is_registered = self._registered == (self._consensus.job, self._consensus.host)
            # After an error: an etcd that is full renews leases, and refuses to write.
            if self._error or not is_registered or not self._etcd.renew(self._lease):
                self._register()
            self._report(self._loss)
        except StoreError as error:
            self._report(str(error))

    def _register(self) -> None:
        """Registers this host with its lease; if the lease of a leader has ended, its next claim campaigns anew."""
        job, host = self._consensus.job, self._consensus.host
        if not self._lease or not self._etcd.renew(self._lease):
            self._lease = self._etcd.grant(self._lease_s)
        # No leader has given this host a number.
        if host < 0:
            self._registered = (job, host)
            return
        key, former = f"{_HOST}{host}", self._registered[1]
        # The leader that gave the former number was lost before it admitted this host.
        removed = [f"{_HOST}{former}"] if former not in (-1, host) else []
        self._etcd.swap({}, {key: job.encode()}, leased={key: self._lease}, removed=removed)
        self._registered = (job, host)

    def _report(self, error: str) -> None:
        # Only the first error of an outage, and its end, are news.
        if bool(error) != bool(self._error):
            self._notify(error)
        self._error = error

    def close(self, *, is_over: bool) -> None:
        """See ``Agreement``: the lease ends at once, so that others need not wait for its end."""
        self._closing.set()
        with suppress(StoreError):
            record = read_record(self._etcd) if is_over else None
            own = (self._consensus.job, self._consensus.term)
            if record and record.holders and (record.holders.job, record.holders.term) == own:
                expected = {key: record.revision(key) for key in (_LEADER, _HOLDERS)}
                over = {_HOLDERS: msgspec.json.encode(HoldersValue(*own, ()))}
                self._etcd.swap(expected, over, leased={_HOLDERS: self._etcd.grant(_OVER_S)}, removed=[_LEADER])
        if self._thread.is_alive():
            self._thread.join()
        with suppress(StoreError):
            self._etcd.revoke(self._lease)
