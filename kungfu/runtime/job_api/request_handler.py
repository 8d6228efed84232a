"""Answers the queries of people and schedulers, logs their requests, and has the requests carried out.

For the status of the job, the handler folds the reported events and steps into a `Job`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from kungfu.event_log.events import CheckpointEvent, LoggedEvent, MissingEvent, RequestEvent, SizeLimitsEvent
from kungfu.event_log.job import Job
from kungfu.event_log.numbers import step_seconds
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.events import Tick, TrainingFinished, ViewStarted
from kungfu.runtime.core.cluster.placement import free_slots
from kungfu.runtime.core.request import Asked, Leave, Resize, SaveCheckpoint, SetLimits, in_words
from kungfu.runtime.core.requests.admission import AdmissionContext, Scaling
from kungfu.runtime.core.requests.profiling import TimedStep
from kungfu.runtime.core.requests.request_log import (
    Answer,
    CoordinatorReplied,
    Event,
    LoggedRequest,
    RequestLog,
    StepsMeasured,
    current,
    first_answer,
    react,
    refusal_of_id,
)
from kungfu.runtime.job_api import status
from kungfu.runtime.job_api.job_service import PlanQuery, ProgressQuery, Query
from kungfu.runtime.job_api.request_plan import plan_request
from kungfu.runtime.settings import Limits, Settings
from kungfu.slowness import STRAGGLER


class RequestHandler:
    """Handles requests and queries of one job; only the agent's main thread may call it.

    Args:
        scaling: "elastic" if requests may change the peers of the job.
        names: The names of the hosts, by number; if empty, the peers run on the agent's host.
        request_log: The previous agent's log after an election; ``None`` for a new job.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        scaling: Scaling,
        record: Callable[[RequestEvent | SizeLimitsEvent], Any],
        process_of: Callable[[int], int],
        names: Mapping[int, str] = MappingProxyType({}),
        request_log: RequestLog | None = None,
    ) -> None:
        self._settings, self._scaling, self._record, self._process_of = settings, scaling, record, process_of
        self._hosts = names or {0: settings.agent.partition(":")[0]}
        self.request_log, self._job = request_log or RequestLog(), Job()
        self._since: dict[tuple[int, str], float] = {}  # when each peer entered its present state
        self._noted_cluster: Cluster | None = None
        self._measured: tuple[TimedStep, ...] = ()
        self._over = ""
        self._unreached: CoordinatorReplied | None = None  # a recorded failure of joiners, not yet handled
        self._replies: list[tuple[Query, Any]] = []

    def handle(self, event: Any, cluster: Cluster, now: float) -> list[Asked]:
        """Handles an event that is already included in ``cluster``.

        Returns:
            The requests for which rank 0 should hold barriers. Neither these nor the replies to queries may be sent
            before the other agents hold the new log: see ``send_replies``.
        """
        self._note_states(cluster, now)
        externals: list[Asked] = []
        # A person or a scheduler has sent a query or a request.
        if isinstance(event, Query):
            externals += self._answer(event, cluster, now)
        # Rank 0 has reported steps, or the outcome of a request.
        elif isinstance(event, NewRecords):
            steps = [self._add_step(line) for line in event.rows]
            # Steps during the start of a joiner or a spare do not count for a profile.
            is_disturbed = cluster.starting or any(one.ready is None for one in cluster.spares.waiting.values())
            self._measured = () if is_disturbed else tuple(one for one in steps if one is not None)
            for reported in event.events:
                self._add_event(reported)
        # The first peer has reached the end of training: no later request can be met.
        if isinstance(event, TrainingFinished) and not event.leaving and not event.phase:
            self._over = self._over or "training is over: the peers' programs run on to their ends"
        for news in self._request_events(event):
            externals += self._step(news, cluster, now)
        return externals

    def send_replies(self) -> None:
        """Sends the replies to the queries that were handled since the last call."""
        replies, self._replies = self._replies, []
        for query, reply in replies:
            query.reply.set_result(reply)

    def on_record(self, event: LoggedEvent) -> None:
        """Remembers a recorded event for the status; if joiners failed, the request that waits for them is refused."""
        self._add_event(event)
        # If the request under way waits for joiners, their failure is why it is refused; later requests are unaffected.
        match event, self.request_log.external:
            case MissingEvent(reason=reason), Asked(what=Resize() | SetLimits() | Leave(when="replaced"), id=id):
                self._unreached = CoordinatorReplied(id, refusal=reason)

    def _add_event(self, event: LoggedEvent) -> None:
        # An event of a peer gets its time when it is recorded.
        self._job = self._job.after(event if event.time is not None else replace(event, time=time.time()))

    def _add_step(self, fields: Mapping[str, Any]) -> TimedStep | None:
        """Adds a measured step; returns it as a sample of a profile, or ``None`` if the step was not timed."""
        self._job, seconds = self._job.after_step(fields), step_seconds(fields)
        return None if seconds is None else TimedStep(fields["size"], fields["batch"], seconds)

    def _request_events(self, event: Any) -> Iterator[Event]:
        """Yields the events that ``event`` causes in the request log, such as measured steps or a request's outcome."""
        external = self.request_log.external
        match event:
            # A profile counts the steps; a checkpoint was written, or writing it failed.
            case NewRecords(events, _):
                yield StepsMeasured(self._measured)
                is_asked = external is not None and isinstance(external.what, SaveCheckpoint)
                for one in events if is_asked else ():
                    # Rank 0 has carried out the external request for a checkpoint, or has failed to.
                    if isinstance(one, CheckpointEvent) and external is not None and one.rule == external.by:
                        why = f"{one.path}: {one.error}" if one.error else ""
                        yield CoordinatorReplied(external.id, why, one.path)
            case ViewStarted() | TrainingFinished() | Tick():
                yield event
        # Joiners did not get ready.
        unreached, self._unreached = self._unreached, None
        if unreached is not None:
            yield unreached

    def _answer(self, query: Query, cluster: Cluster, now: float) -> list[Asked]:
        subject, externals = query.subject, list[Asked]()
        # A new request, or a repeated request, which gets its first answer again.
        if isinstance(subject, Asked):
            externals = self._step(subject, cluster, now)
            entry, answer = self._answered(subject, now)
            reply: Any = status.request_progress(entry, answer=answer, now=now)
        elif isinstance(subject, PlanQuery):
            context, hosts = self._admission_context(cluster), self._hosts
            reply = plan_request(
                subject.request, log=self.request_log, context=context, cluster=cluster, hosts=hosts,
                speeds=self._job.speeds, now=now,
            )  # fmt: skip
        elif isinstance(subject, ProgressQuery):
            reply = self._progress(self.request_log.entries.get(subject.id), now)
        else:
            reply = self._status(cluster, now)
        self._replies.append((query, reply))
        return externals

    def _answered(self, request: Asked, now: float) -> tuple[LoggedRequest, Answer]:
        """The log's entry and the answer for a newly submitted request; a request with a used id is refused."""
        if (why := refusal_of_id(self.request_log, request)) is not None:
            refused = Answer("refused", why)
            return LoggedRequest(request, refused, refused, now, now), refused
        answer = first_answer(self.request_log, request)
        assert answer is not None
        return self.request_log.entries[request.id], answer

    def _step(self, event: Event, cluster: Cluster, now: float) -> list[Asked]:
        before = self.request_log
        # Neither a request under way nor a limit could change, and building the context takes time.
        if current(before) is None and not before.sizes.revision and not isinstance(event, Asked):
            return []
        self.request_log, externals = react(before, event, self._admission_context(cluster), now)
        changed = self.request_log is not before
        for name, entry in self.request_log.entries.items() if changed else ():
            known = before.entries.get(name)
            if known is None or known.newest.state != entry.newest.state:
                self._record(_as_event(entry, now))
        if self.request_log.sizes != before.sizes:
            self._record(self._limits_event(event))
        return externals

    @property
    def limits(self) -> Limits:
        """The limits of the size in force."""
        return self.request_log.sizes.within(self._settings.limits)

    def _limits_event(self, event: Event) -> SizeLimitsEvent:
        """The event that records the new limits of the size, and the hold."""
        limits, hold = self.limits, self.request_log.hold
        why = f"kungfu {in_words(event.what)}" if isinstance(event, Asked) else "the time of the hold is over"
        held, until = (None, None) if hold is None else (hold.size, hold.until)
        return SizeLimitsEvent(minimum=limits.minimum, maximum=limits.maximum, held=held, until=until, why=why)

    def _admission_context(self, cluster: Cluster) -> AdmissionContext:
        deadlines, hold = self._settings.deadlines, self.request_log.hold
        return AdmissionContext(
            cluster.view,
            self.limits,
            self._scaling,
            self._names(cluster),
            deadlines.ready_s + deadlines.longest_wait_s,
            self._over,
            status.metrics_of(self._job).global_batch_size,
            free_slots(cluster),
            self._settings.limits.maximum,
            None if hold is None else hold.size,
            time.time(),
        )

    def _names(self, cluster: Cluster) -> dict[str, int]:
        """The numbers of the hosts that can run peers, by name; the only host of a job is also named localhost."""
        own = {"localhost": 0, socket.gethostname(): 0} if len(self._hosts) == 1 else {}
        return own | {self._hosts[number]: number for number in cluster.hosts.slots}

    def _status(self, cluster: Cluster, now: float) -> status.JobStatus:
        return status.JobStatus(
            self._settings.job,
            self._scaling,
            status.membership_status(
                cluster, self.limits, external=self.request_log.external, hold=self.request_log.hold, now=now
            ),
            self._peers(cluster, now),
            status.metrics_of(self._job),
            self._progress(current(self.request_log), now),
            tuple(status.Trouble(one.time or 0.0, one.one_line() or one.headline()) for one in self._job.troubles),
            self._job.progress.progress,
        )

    def _progress(self, entry: LoggedRequest | None, now: float) -> status.RequestProgress | None:
        return None if entry is None else status.request_progress(entry, answer=entry.newest, now=now)

    def _peers(self, cluster: Cluster, now: float) -> tuple[status.PeerStatus, ...]:
        speeds, members = self._job.speeds, cluster.view.peers if cluster.view else ()
        addresses = {peer.id: peer.address for peer in members}
        return tuple(
            status.PeerStatus(
                peer,
                cluster.view.rank_of(peer) if cluster.view else None,
                self._hosts.get(host := cluster.hosts.of.get(peer, 0), f"host {host}"),
                self._process_of(peer),
                state,
                now - self._since[peer, state],
                speeds.get(peer),
                speeds[peer] < STRAGGLER if peer in speeds else None,
                addresses.get(peer, ""),
            )
            for peer, state in status.peer_states(cluster).items()
        )

    def _note_states(self, cluster: Cluster, now: float) -> None:
        """Remembers when each peer entered its present state."""
        if cluster is not self._noted_cluster:
            self._noted_cluster = cluster
            self._since = {entry: self._since.get(entry, now) for entry in status.peer_states(cluster).items()}


def _as_event(entry: LoggedRequest, now: float) -> RequestEvent:
    """The event that records the progress of a request."""
    answer = entry.newest
    words = status.request_progress(entry, answer=answer, now=now)
    return RequestEvent(
        id=words.id, request=words.words, state=answer.state, reason=answer.reason, view=answer.view,
        seconds=round(words.seconds, 6),
    )  # fmt: skip
