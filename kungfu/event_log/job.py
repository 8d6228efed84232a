"""The state of a job according to its record: `Job`, the only class that derives the state from events and steps.

Screens, reports, exporters, tests and the agents' answers render a `Job`, and compute no state from events themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from kungfu.event_log import events
from kungfu.event_log.numbers import as_float, as_whole
from kungfu.event_log.progress import ProgressSoFar

# The figures that a step has in every job, except the learning rate; other numbers are named signals of policies.
FIGURES_OF_JOB = ("time", "step", "view", "epoch", "size", "batch", "loss", "samples_per_s")

# The maximum numbers of decisions, ended peers, labels and troubles in a `Job`; the record has all of them.
_MOST_KEPT, _MOST_ENDED, _MOST_LABELS, _MOST_TROUBLES = 200, 64, 50, 8

# The events that close a decision.
Closing = events.RescaleEvent | events.RefusedEvent | events.SupersededEvent
# The fields that hold the newest event of a kind.
_FIELDS = {events.EndedEvent: "ending", events.LeaderEvent: "leader", events.SizeLimitsEvent: "limits"}
PeerState = Literal[
    "starting spare", "spare", "starting", "ready", "training", "done training", "leaving", "ended",
]  # fmt: skip


class JobHost(Struct, frozen=True):
    """A host of a job. It joined at ``started_at``; if not ``is_present``, it has left or is lost."""

    name: str
    pid: int  # of its kungfu-run
    started_at: float | None = None
    is_present: bool = True
    address: str = ""  # of its kungfu-run; empty if it is not known, or the host has left


class JobPeer(Struct, frozen=True):
    """A peer of a job, with the state of its process.

    Attributes:
        host: The id of its host; 0 in a job of one host.
        pid: Its process id; None if its start was not recorded.
        started_at: The start time of its process, in seconds since 1970; None if not known.
        rank: Its rank; None outside the view.
        state: Its activity, such as "starting" or "ended".
        since: The start time of the activity, in seconds since 1970; None if not known.
        how: The way in which its process ended or was lost.
        is_dismissed: True if an agent ended the process.
        is_lost: True if the peer was lost from the view.
    """

    id: int
    host: int = 0
    pid: int | None = None
    started_at: float | None = None
    rank: int | None = None
    state: PeerState = "starting"
    since: float | None = None
    how: str = ""
    is_dismissed: bool = False
    is_lost: bool = False

    @property
    def is_gone(self) -> bool:
        """True if this peer has stopped training permanently; its process may run for a while longer."""
        return self.state in ("leaving", "ended")


class JobDecision(Struct, frozen=True):
    """A decision about the size or the peers of a job, and the event that carried it out, refused or superseded it."""

    event: events.DecisionEvent
    outcome: Closing | None = None  # None while the decision is open
    is_waiting: bool = False  # True while the decision waits for joiners

    @property
    def is_open(self) -> bool:
        """True while the result of the decision is not known; False if the decision changes nothing."""
        return self.outcome is None and self.event.is_change

    def result(self) -> tuple[str, str]:
        """The decision's state as a word, and a description of its result, or of its effect so far if none is known."""
        return (self.outcome or self.event).outcome()


class JobTally(Struct, frozen=True):
    """The counts and sums over the events of a job.

    Attributes:
        counts: The number of events by kind.
        labelled: The number of events by kind and label, for kinds with labels; 0 for rules without decisions so far.
        replacements: The number of rescales without a rule, in which replacements of lost peers joined.
        lost_peers: The number of lost peers.
        stopped_s: Seconds for which rescales and losses stopped training.
        unrecorded: The number of events that could not be written to the record.
        steps_again: The steps that were done again after restarts.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    labelled: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    replacements: int = 0
    lost_peers: int = 0
    stopped_s: float = 0.0
    unrecorded: int = 0
    steps_again: int = 0

    def after(self, event: events.LoggedEvent) -> JobTally:
        """The counts and sums including one more event."""
        tally = replace(self, counts={**self.counts, event.kind: self.counts.get(event.kind, 0) + 1})
        if label := event.tallied_as():
            tally = tally._with(event.kind, label, 1)
        match event:
            case events.RulesEvent():
                for rule in event.rules:
                    tally = tally._with("decision", rule, 0)
            case events.RescaleEvent():
                replaces = "recovered" in self.counts and not event.rule and bool(event.joined)
                stopped_s = self.stopped_s + event.stop_s
                return replace(tally, replacements=self.replacements + replaces, stopped_s=stopped_s)
            case events.RecoveredEvent():
                lost_peers, stopped_s = self.lost_peers + len(event.lost), self.stopped_s + event.stop_s
                return replace(tally, lost_peers=lost_peers, stopped_s=stopped_s)
            case events.RestartedEvent():
                return replace(tally, steps_again=self.steps_again + event.steps_again)
            case events.GapEvent(file="events.jsonl"):
                return replace(tally, unrecorded=self.unrecorded + event.lines)
        return tally

    def _with(self, kind: str, label: str, count: int) -> JobTally:
        known = self.labelled.get(kind, {})
        name = label if label in known or len(known) < _MOST_LABELS else "others"
        return replace(self, labelled={**self.labelled, kind: {**known, name: known.get(name, 0) + count}})


class Job(Struct, frozen=True):
    """The state of a job after the events and steps recorded so far; empty without events.

    Attributes:
        names: The names under which it was started: a job that is started again gets another name.
        hosts: Its hosts by id, including departed hosts; empty in a job of one host.
        peers: Its peers by id, including the most recently ended peers.
        view_steps: The steps done before the view in force and each later view, by version, as far as they are known.
        phase: The number of the newest announced ``fit`` of the program; 0 before the second ``fit``.
        finished: The `FinishedEvent` of each peer that has completed this ``fit``.
        late_joiners: The joiners that were on their way when training ended, in their state at that time.
        longest: The `FinishedEvent` with the most steps, over all phases.
        awaited: The size to which the job returns after a loss; 0 if no replacement is on its way.
        wanted: The size of the start, or of the newest decision that was not refused; a loss does not change it.
        change: The newest decision, refusal, or change of the membership.
        decisions: The newest decisions with their outcomes, oldest first.
        base: The batch size from which rules compute the batch size at a rescale, and the number of peers for which it
            was set; None if not known.
        requests: The newest event of each recent external request, by id.
        limits: The newest change of the limits of the size, or of a hold; None if there was none.
        troubles: The newest events about problems, oldest first.
        not_finite: The events of values that are not finite now, by name.
        barriers: The number of barriers in which rules fired.
        rules_step: The step of the newest barrier in which rules fired.
        trained_at: The time of the first view, in seconds since 1970; None if not known.
        last_at: The time of the newest event, in seconds since 1970; None if not known.
        known: The newest value of each figure over all steps, by name; may be NaN or infinite.
        steps: The number of steps done, which is the highest step number so far.
        progress: The progress in samples and epochs, and the pace.
        speeds: The newest known speeds of peers by id, as fractions of the median peer's.
    """

    started: events.StartedEvent | None = None
    names: tuple[str, ...] = ()
    ending: events.EndedEvent | events.FailedEvent | None = None
    leader: events.LeaderEvent | None = None
    hosts: Mapping[int, JobHost] = field(default_factory=dict)
    peers: Mapping[int, JobPeer] = field(default_factory=dict)
    view: events.ViewEvent | None = None
    restarted: events.RestartedEvent | None = None
    view_steps: Mapping[int, int] = field(default_factory=dict)
    phase: int = 0
    finished: tuple[events.FinishedEvent, ...] = ()
    late_joiners: tuple[JobPeer, ...] = ()
    longest: events.FinishedEvent | None = None
    awaited: int = 0
    wanted: int = 0
    change: events.DecisionEvent | events.RescaleEvent | events.RecoveredEvent | events.RefusedEvent | None = None
    decisions: tuple[JobDecision, ...] = ()
    rescales: tuple[events.RescaleEvent, ...] = ()
    base: tuple[int, int] | None = None
    requests: Mapping[str, events.RequestEvent] = field(default_factory=dict)
    limits: events.SizeLimitsEvent | None = None
    checkpoint: events.CheckpointEvent | None = None
    troubles: tuple[events.LoggedEvent, ...] = ()
    not_finite: Mapping[str, events.NotFiniteEvent] = field(default_factory=dict)
    barriers: int = 0
    rules_step: int = -1
    tally: JobTally = field(default_factory=JobTally)
    trained_at: float | None = None
    last_at: float | None = None
    newest: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    progress: ProgressSoFar = field(default_factory=ProgressSoFar)
    speeds: Mapping[int, float] = field(default_factory=dict)

    # ---- present state -----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of peers in the view in force; 0 before the first view."""
        return len(self.view.peers) if self.view else 0

    @property
    def members(self) -> tuple[int, ...]:
        """The ids of the peers of the view that are not gone, in rank order."""
        peers = self.view.peers if self.view else ()
        return tuple(peer for peer in peers if peer in self.peers and not self.peers[peer].is_gone)

    @property
    def joiners(self) -> tuple[int, ...]:
        """The ids of the peers on their way into the view; spares are not on their way."""
        inside, others = self.view.peers if self.view else (), self.spares
        return tuple(
            peer for peer, one in self.peers.items() if not one.is_gone and peer not in inside and peer not in others
        )

    @property
    def spares(self) -> tuple[int, ...]:
        """The ids of the spares, which wait or are still starting."""
        return tuple(peer for peer, one in self.peers.items() if one.state in ("spare", "starting spare"))

    @property
    def hosts_present(self) -> tuple[int, ...]:
        """The ids of the hosts that are in the job."""
        return tuple(host for host, one in self.hosts.items() if one.is_present)

    def peer(self, id: int) -> JobPeer:
        """The peer with this id; a `JobPeer` with default values if the record has not named the peer."""
        return self.peers.get(id) or JobPeer(id)

    def peers_of(self, host: int) -> tuple[int, ...]:
        """The ids of the peers of a host that are not gone."""
        return tuple(peer for peer, one in self.peers.items() if one.host == host and not one.is_gone)

    def is_settled(self, size: int) -> bool:
        """True if no joiner is on its way, all `size` peers of the view are alive, and the view has done a step."""
        # A joiner has the complete state only from its first step on.
        begun = self.view_steps.get(self.view.version) if self.view else None
        has_trained = begun is not None and self.steps > begun
        return len(self.members) == self.size == size and not self.joiners and has_trained

    @property
    def is_whole(self) -> bool:
        """True if the job has settled at its target size and no request is under way."""
        is_asked = any(one.state == "accepted" for one in self.requests.values())
        return self.size > 0 and self.is_settled(self.size) and self.size >= self.awaited and not is_asked

    def is_led_by(self, host: int | str) -> bool:
        """True if the agent of ``host`` (an id or a name), whose record this is, leads the job."""
        if self.leader is not None:
            return host in (self.leader.host, self.leader.name)
        # The first host creates the job. Back after a loss, its new record lacks the start, and another host leads.
        return host == 0 and (self.started is not None or self.view is None)

    @property
    def stepped_at(self) -> float:
        """The end of the newest step, in seconds since 1970; 0 if not known."""
        return as_float(self.newest.get("time")) or 0.0

    @property
    def batch(self) -> float | None:
        """The batch in force, in samples; a smaller last batch of an epoch does not count."""
        return self.progress.batches.batch

    @property
    def samples_per_s(self) -> float | None:
        """The throughput of the last minute at the present size; that of one step before several were measured."""
        return self.progress.recent.samples_per_s or self.known.get("samples_per_s")

    @property
    def waiting(self) -> tuple[events.DecisionEvent, ...]:
        """The decisions that wait for joiners; none once the job has ended."""
        return () if self.ending else self.unmet

    @property
    def unmet(self) -> tuple[events.DecisionEvent, ...]:
        """The decisions whose joiners have not joined, and were not given up before the job ended."""
        return tuple(one.event for one in self.decisions if one.is_waiting)

    # ---- changes -----------------------------------------------------------------------------------------------------

    def after(self, event: events.LoggedEvent) -> Job:
        """The state of the job after one more event. Cost: a copy of the `Job`; O(peers) for an event of a peer."""
        job = replace(self, tally=self.tally.after(event), last_at=self.last_at if event.time is None else event.time)
        match event:
            case events.StartedEvent():
                return replace(job, started=event, names=(*job.names, event.job), wanted=event.size)
            case events.RestartedEvent():
                return job._restarted(event)
            case events.FailedEvent():
                job = job if job.peer(event.peer).is_dismissed else job._in_trouble(event)
                return replace(job._without_waiting(), ending=event)
            case events.MissingEvent():
                return replace(job, awaited=0)._in_trouble(event)
            case events.PhaseEvent():
                again = job.progress.begun_again()
                # The spares get ready for the phase; those that have only loaded TensorFlow have nothing to do.
                if job.started is None or job.started.spare_level == "warm":
                    job = job._with_peers(event, job.spares, "starting spare")
                return replace(job, phase=event.phase, finished=(), late_joiners=(), progress=again, base=None)
            case events.RegroupingEvent():
                return replace(job, awaited=event.target)
            case events.RecoveredEvent():
                return replace(job, change=event, awaited=event.target)
            case events.DecisionEvent():
                is_waiting = event.is_change and (event.asked > event.size or event.when == "replaced")
                decisions = (*job.decisions, JobDecision(event, None, is_waiting))[-_MOST_KEPT:]
                wanted = event.asked if event.is_change else job.wanted
                return replace(job._at_barrier(event.step), change=event, decisions=decisions, wanted=wanted)
            case events.CalledEvent():
                return job._at_barrier(event.step)
            case events.SupersededEvent():
                return job if event.later is None else job._closed(event, event.rule, event.step)
            case events.RefusedEvent():
                closed = job._closed(event, event.rule, None)._without_waiting()
                # Without a rule, lost peers are not replaced: the job still lacks them.
                wanted = event.size if event.rule else job.wanted
                return replace(closed, change=event, awaited=0, wanted=wanted)._in_trouble(event)
            case events.RescaleEvent():
                return job._rescaled(event)
            case events.SetEvent(what="stop"):
                return replace(job, progress=job.progress.ended())
            case events.SetEvent(what="global batch size"):
                return replace(job, base=None)
            case events.RequestEvent():
                others = {id: one for id, one in job.requests.items() if id != event.id}
                newest = [*others.items(), (event.id, event)][-_MOST_KEPT:]
                return replace(job, requests=dict(newest))
            case events.CheckpointEvent(error=""):
                return replace(job, checkpoint=event)
            case events.EndedEvent() | events.LeaderEvent() | events.SizeLimitsEvent():
                return replace(job, **{_FIELDS[type(event)]: event})
            case events.NotFiniteEvent():
                return replace(job, not_finite={**job.not_finite, event.what: event})._in_trouble(event)
            case events.FiniteAgainEvent():
                return replace(job, not_finite={k: v for k, v in job.not_finite.items() if k != event.what})
            case events.UndefinedEvent():
                return job._in_trouble(event)
            case events.RestoredEvent(error=error) if error:
                return job._in_trouble(event)
        return job._after_arrival_or_end(event)

    def _after_arrival_or_end(self, event: events.LoggedEvent) -> Job:
        """The job after the arrival, progress or end of a host or peer; unchanged by any other event."""
        match event:
            case events.HostJoinedEvent():
                # A host that was cut off has recorded an ending, and returns to the job.
                address = f"{event.name}:{event.port}" if event.port else ""
                hosts = {**self.hosts, event.host: JobHost(event.name, event.pid, event.time, address=address)}
                return replace(self, hosts=hosts, ending=None)
            case events.HostLeftEvent():
                return self._without_host(event, "its host left the job")
            case events.HostLostEvent():
                return self._without_host(event, "its host was lost")._in_trouble(event)
            case events.SpawnedEvent():
                one = JobPeer(event.peer, event.host or 0, event.pid, event.time, since=event.time)
                return self._with_peer(replace(one, state="starting spare") if event.spare else one)
            case events.SpareEvent(state="ready"):
                return self._with_peers(event, (event.peer,), "spare")
            case events.SpareEvent(state="wanted"):
                is_ready = self.peer(event.peer).state == "spare"
                return self._with_peers(event, (event.peer,), "ready" if is_ready else "starting")
            case events.OfferedEvent():
                return self._with_peers(event, event.peers, "ready")
            case events.DismissedEvent():
                job = self._with_peers(event, (event.peer,), "leaving")
                return job._with_peer(replace(job.peer(event.peer), is_dismissed=True))
            case events.ViewEvent():
                return self._in_view(event)
            case events.SpanEvent():
                begun = max(event.step, self.view_steps.get(event.view, 0))
                return replace(self, view_steps={**self.view_steps, event.view: begun})
            case events.FinishedEvent():
                return self._finished(event)
            case events.LostEvent():
                return self._ended(event.peer, event, event.how)
            case events.PeerEndedEvent():
                is_trouble = event.how != "exit code 0" and not self.peer(event.peer).is_dismissed
                return (self._in_trouble(event) if is_trouble else self)._ended(event.peer, event, event.how)
        return self

    def after_step(self, figures: Mapping[str, Any]) -> Job:
        """The job after a measured step; `figures` is the step's line of ``metrics.jsonl``."""
        fractions = figures.get("straggler_fractions")
        # The last line of a view has no speeds: the previous speeds stay valid, until the size changes.
        speeds = self.speeds if figures.get("size") == self.newest.get("size") else {}
        numbers = {name: number for name, value in figures.items() if (number := as_float(value)) is not None}
        return replace(
            self,
            newest=figures,
            known={**self.known, **numbers},
            steps=self._steps_after(figures),
            progress=self.progress.after_step(figures),
            speeds=(_speeds(fractions) if isinstance(fractions, Mapping) else {}) or speeds,
        )

    def _in_trouble(self, event: events.LoggedEvent) -> Job:
        return replace(self, troubles=(*self.troubles, event)[-_MOST_TROUBLES:])

    def _at_barrier(self, step: int) -> Job:
        """The job with a barrier at ``step`` in which a rule fired; several rules at one barrier count as one."""
        return replace(self, barriers=self.barriers + (step != self.rules_step), rules_step=step)

    def _steps_after(self, figures: Mapping[str, Any]) -> int:
        step, view = as_whole(figures.get("step")) or 0, as_whole(figures.get("view")) or 0
        newest = as_whole(self.newest.get("view")) or 0
        # A restart has undone the steps of older views after its checkpoint.
        return step if view > newest else max(self.steps, step) if view == newest else self.steps

    # ---- hosts and peers ---------------------------------------------------------------------------------------------

    def _without_host(self, event: events.HostLeftEvent | events.HostLostEvent, how: str) -> Job:
        job = self
        if host := self.hosts.get(event.host):
            # A lost host may come back, or go on with others.
            address = host.address if isinstance(event, events.HostLostEvent) else ""
            gone = replace(host, is_present=False, address=address)
            job = replace(self, hosts={**self.hosts, event.host: gone})
        for peer in self.peers_of(event.host):
            job = job._ended(peer, event, how)
        return job

    def _with_peer(self, peer: JobPeer) -> Job:
        return replace(self, peers={**self.peers, peer.id: peer})

    def _with_peers(self, event: events.LoggedEvent, peers: Iterable[int], state: PeerState) -> Job:
        known = [one for one in map(self.peer, peers) if one.state != "ended"]
        changed = {one.id: replace(one, state=state, since=event.time) for one in known}
        return replace(self, peers={**self.peers, **changed})

    def _in_view(self, event: events.ViewEvent) -> Job:
        peers = {peer: one if peer in event.peers else _outside(one, event) for peer, one in self.peers.items()}
        for rank, peer in enumerate(event.peers):
            one = self.peer(peer)
            since = one.since if one.state == "training" else event.time
            peers[peer] = replace(one, rank=rank, state="training", since=since)
        steps = {version: step for version, step in self.view_steps.items() if version >= event.version}
        trained_at = event.time if self.trained_at is None else self.trained_at
        return replace(self, view=event, view_steps=steps, peers=peers, trained_at=trained_at)

    def _ended(self, peer: int, event: events.LoggedEvent, how: str) -> Job:
        """The job after the end or loss of a peer; a loss overrides an earlier record that the peer's process ended."""
        one, is_lost = self.peer(peer), isinstance(event, events.LostEvent)
        if one.state == "ended" and not is_lost:
            return self
        others = {id: other for id, other in self.peers.items() if id != peer}
        ended = [id for id, other in others.items() if other.state == "ended"]
        if len(ended) >= _MOST_ENDED:
            del others[ended[0]]
        gone = replace(one, rank=None, state="ended", since=event.time, how=how, is_lost=is_lost)
        return replace(self, peers={**others, peer: gone})

    def _finished(self, event: events.FinishedEvent) -> Job:
        longest = event if self.longest is None or event.steps > self.longest.steps else self.longest
        state: PeerState = "leaving" if event.leaving else "done training"
        job = replace(self._with_peers(event, (event.peer,), state), longest=longest)
        if event.leaving:
            return job
        job = replace(job, progress=job.progress.ended())
        if event.phase and event.phase < job.phase:
            return job
        late = job.late_joiners or tuple(map(self.peer, self.joiners))
        return replace(job, finished=(*job.finished, event), late_joiners=late)

    def _restarted(self, event: events.RestartedEvent) -> Job:
        """The job without its processes, hosts, requests and limits, which a restart ends, and with its history."""
        job = self
        for peer in [peer for peer, one in self.peers.items() if one.state != "ended"]:
            job = job._ended(peer, event, "the job was started again")
        is_before = (as_whole(self.newest.get("view")) or 0) < event.first_view  # lines of metrics may come first
        steps, progress = event.step if is_before else self.steps, self.progress.begun_again()
        requests = {id: one for id, one in self.requests.items() if one.state != "accepted"}
        return replace(
            job._without_waiting(), restarted=event, ending=None, leader=None, hosts={}, view=None, view_steps={},
            phase=0, finished=(), late_joiners=(), change=None, awaited=0, wanted=event.size, base=None,
            requests=requests, limits=None, not_finite={}, speeds={}, steps=steps, progress=progress,
        )  # fmt: skip

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def _rescaled(self, event: events.RescaleEvent) -> Job:
        job = self if event.decided_at is None else self._closed(event, event.rule, event.decided_at)
        # The awaited joiners have joined.
        job = job._without_waiting() if event.joined else job
        return replace(
            job,
            change=event,
            awaited=0,
            rescales=(*job.rescales, event)[-_MOST_KEPT:],
            # The settings of rules on a rescale are recorded before the rescale.
            base=(event.base_global_batch_size, event.base_size) if event.base_size else None,
        )

    def _closed(self, event: Closing, rule: str, step: int | None) -> Job:
        """Sets ``event`` as the result of each named rule's newest open decision; for one rule, that of ``step``."""
        rules, decisions = rule.split(" and "), [*self.decisions]
        # One change may carry out the decisions of several rules, each of a different step.
        step = step if len(rules) == 1 else None
        for name in dict.fromkeys((rule, *rules)):
            for index in reversed(range(len(decisions))):
                one = decisions[index]
                if one.is_open and one.event.rule == name and step in (None, one.event.step):
                    decisions[index] = JobDecision(one.event, event)
                    break
        return replace(self, decisions=tuple(decisions))

    def _without_waiting(self) -> Job:
        """The job once no decision waits for joiners any more: the joiners have joined, or will not join."""
        decisions = tuple(replace(one, is_waiting=False) if one.is_waiting else one for one in self.decisions)
        return replace(self, decisions=decisions)


def fold(recorded: Iterable[events.LoggedEvent]) -> Job:
    """The job after the events of a record."""
    return reduce(Job.after, recorded, Job())


def _outside(peer: JobPeer, view: events.ViewEvent) -> JobPeer:
    """A peer outside `view`: leaving if it trained in the previous view, else unchanged except for its rank."""
    if peer.state in ("training", "done training"):
        return replace(peer, rank=None, state="leaving", since=view.time)
    return replace(peer, rank=None)


def _speeds(fractions: Mapping[Any, Any]) -> dict[int, float]:
    known = {
        int(peer): as_float(speed) for peer, speed in fractions.items() if str(peer).isdecimal() and len(str(peer)) < 10
    }
    return {peer: speed for peer, speed in known.items() if speed is not None and math.isfinite(speed)}
