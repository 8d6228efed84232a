"""The request log: the requests to a job, their answers, and their lifecycle as a pure function of the job's events.

``react(log, event, context, now)`` returns the next log and the requests to send to the coordinator, which are called
*external* requests. A request has one of these states:

| state       | reason                                                                                       |
| ----------- | -------------------------------------------------------------------------------------------- |
| accepted    | the job can carry it out: it was sent to the coordinator                                     |
| carried out | the view is as requested, the coordinator reported it, or training is over (``stop``)        |
| refused     | it does not fit the job; or later: the coordinator refused, the job ended, a ``stop`` came   |
| expired     | none of these happened within the job's patience; the job may still carry it out             |

One request at a time is under way. Two do not wait: ``stop`` replaces the request under way, and a `Release` is carried
out beside it. The log also holds the limits of the size and the hold (`SizeLimits`), which begin with the acceptance of
a request, whatever comes of it; a coordinator whose terms lack the newest ones is informed. A repeated id has no
effect, however old the id is. If a new view is not yet as requested, its coordinator may be new, so the external
request is sent again; a coordinator that has received the request before recognizes its id.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec import structs

from kungfu.runtime.core.cluster.events import Tick, TrainingFinished, ViewStarted
from kungfu.runtime.core.request import (
    AGENT,
    AnyRequest,
    Asked,
    Leave,
    Migrate,
    Profile,
    Release,
    Resize,
    SaveCheckpoint,
    ScaleOut,
    SetBatch,
    SetLimits,
    StopTraining,
    in_words,
)
from kungfu.runtime.core.requests.admission import AdmissionContext, refusal_of, size_with
from kungfu.runtime.core.requests.profiling import Point, Survey, TimedStep, start_survey, with_measured
from kungfu.runtime.core.size_limits import AS_STARTED, Hold, SizeLimits
from kungfu.runtime.core.view import View

RequestState = Literal["accepted", "carried out", "refused", "expired"]

# The number of requests that are remembered with their answers; of older requests only the ids are remembered.
REMEMBERED = 1000
# The maximum number of ids of older requests: two megabytes, reached in three weeks with a request every ten seconds.
MOST_FORGOTTEN = 200_000
_DIGEST_BYTES = 8
_LINE = 12  # characters of a digest and its line end


@dataclass(frozen=True)
class Answer:
    """An answer to a request: the state that the request has reached, with the reason and the results."""

    state: RequestState
    reason: str = ""  # the reason for a refusal, or the outcome; empty if there is none
    view: int = 0  # the version of the view at the time of the answer
    points: tuple[Point, ...] = ()  # the throughputs that a profile has measured so far


@dataclass(frozen=True)
class LoggedRequest:
    """A request with its answers and its remaining work."""

    request: Asked
    first: Answer  # the first answer to the sender; a repeated request receives this answer again
    newest: Answer
    asked_at: float  # the time of the request, in seconds of the agent's clock
    until: float  # the time at which the request expires
    external: Asked | None = None  # the last request sent to the coordinator
    survey: Survey | None = None


@dataclass(frozen=True)
class RequestLog:
    """The requests of a job with their answers; of old requests, only the ids."""

    # The remembered requests by id, in the order of their arrival.
    entries: Mapping[str, LoggedRequest] = field(default_factory=dict)
    under_way: str | None = None  # the id of the request under way
    # The digests of the ids of older requests, one per line, so that no older request is carried out again. They form
    # one text, since they are sent to all agents with every change of the log.
    forgotten: str = ""
    sizes: SizeLimits = AS_STARTED  # the limits of the size that people have set, and their hold

    @property
    def external(self) -> Asked | None:
        """The newest order to the coordinator for the request under way; ``None`` if no request is under way."""
        entry = current(self)
        return entry.external if entry else None

    @property
    def hold(self) -> Hold | None:
        """The hold of the size; ``None`` if policies may change the size."""
        return self.sizes.hold


@dataclass(frozen=True)
class CoordinatorReplied:
    """The coordinator's answer to an external request."""

    external: str  # the id of the request
    refusal: str = ""  # the reason why the request cannot be carried out; empty if it was carried out
    result: str = ""  # the result of the request


@dataclass(frozen=True)
class StepsMeasured:
    """The steps that the coordinator measured while the job had no joiner that was getting ready."""

    steps: tuple[TimedStep, ...]


# A submitted request, news of the request under way, and the events of the cluster for which that request may wait.
Event = Asked | CoordinatorReplied | StepsMeasured | ViewStarted | TrainingFinished | Tick


def current(log: RequestLog) -> LoggedRequest | None:
    """The request under way; ``None`` if there is none."""
    return None if log.under_way is None else log.entries.get(log.under_way)


def first_answer(log: RequestLog, request: Asked) -> Answer | None:
    """The first answer to this request; a refusal if a different request has the same id; ``None`` if the id is new."""
    entry = log.entries.get(request.id)
    if entry is None or entry.request == request:
        # The id is new, or the request is a repetition.
        return entry.first if entry else None
    given = in_words(entry.request.what)
    return Answer("refused", f"the id {request.id!r} was given to another request, {given}; choose a new one")


def refusal_of_id(log: RequestLog, request: Asked) -> str | None:
    """The reason why this id cannot be used; ``None`` if the id is new or belongs to a remembered request."""
    if request.id in log.entries:
        # A repetition receives its first answer again.
        return None
    if _digest(request.id) in log.forgotten:
        # The answer is forgotten, but not the id: the request is not carried out again.
        return f"the id {request.id!r} was given to a request of this job that ended long ago; choose a new one"
    count = len(log.forgotten) // _LINE
    # If the text of forgotten ids is full, an unknown id may be a repetition.
    if count >= MOST_FORGOTTEN and not isinstance(request.what, StopTraining):
        return (
            f"this job has answered {count + len(log.entries)} requests and cannot tell any more "
            "whether an id is new; it takes only stop: go on from a checkpoint in a new job"
        )
    return None


def with_entry(log: RequestLog, entry: LoggedRequest) -> RequestLog:
    """The log with this entry; the oldest entries beyond ``REMEMBERED`` are reduced to their ids."""
    entries, forgotten = {**log.entries, entry.request.id: entry}, log.forgotten
    spare = [name for name in entries if name not in (log.under_way, entry.request.id)]
    for old in spare[: max(0, len(entries) - REMEMBERED)]:
        del entries[old]
        forgotten += _digest(old)
    return replace(log, entries=entries, forgotten=forgotten)


def _digest(name: str) -> str:
    """The digest of an id, as a line of `RequestLog.forgotten`; lines are equally long, so only whole lines match."""
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
    return base64.b64encode(digest).decode().rstrip("=") + "\n"


# ---- the lifecycle ---------------------------------------------------------------------------------------------------

LogTransition = tuple[RequestLog, list[Asked]]


def react(log: RequestLog, event: Event, context: AdmissionContext, now: float) -> LogTransition:
    """The next log and the requests to send to the coordinator; ``context`` is the state of the job after the event."""
    if isinstance(event, Asked):
        return _on_submitted(log, event, context, now)
    log, notices = _with_hold_ended(log, event, now)
    entry = current(log)
    if entry is None:
        # No request is under way that the event could concern.
        return log, notices
    log, externals = _on_event(log, entry, event, context, now)
    # A size that is sent again brings the limits along; a notice might reach this size first, with another batch.
    is_sized = any(isinstance(one.what, Resize | SetLimits) for one in externals)
    return log, externals if is_sized else [*notices, *externals]


def _on_event(
    log: RequestLog, entry: LoggedRequest, event: Event, context: AdmissionContext, now: float
) -> LogTransition:
    """Handles an event for which the request under way may wait."""
    match event:
        case ViewStarted():
            return _on_view_changed(log, entry, context, now)
        case CoordinatorReplied():
            return _on_coordinator_replied(log, entry, event, context, now)
        # Steps count for a profile while the view has the size to measure.
        case StepsMeasured(steps) if entry.survey is not None and _has_size(context.view, entry.survey):
            return _advance_profile(log, replace(entry, survey=with_measured(entry.survey, steps)), context, now)
        # Training, or a phase of it, has ended, as a stop requested.
        case TrainingFinished(leaving=False) if isinstance(entry.request.what, StopTraining):
            return _with_end(log, entry, "carried out", "training has ended", context), []
        # Other requests wait for the next phase; without a next phase they can no longer be carried out.
        case TrainingFinished(leaving=False, phase=0):
            return _with_end(log, entry, "refused", context.end_reason, context), []
        # The request has expired: its sender need not wait any longer.
        case Tick() if now > entry.until:
            why = f"not carried out within {entry.until - entry.asked_at:.0f} s; the job may still carry it out"
            why += _lasting(log, entry.request.what, now)
            if entry.survey is not None and entry.survey.goal.batch is not None:
                why += f"; an epoch needs at least {entry.survey.goal.batch} samples, and no policy may set the batch"
            return _with_end(log, entry, "expired", why, context), _back_to_initial(entry)
        case _:
            return log, []


def _on_submitted(log: RequestLog, request: Asked, context: AdmissionContext, now: float) -> LogTransition:
    if request.id in log.entries or refusal_of_id(log, request) is not None:
        # The id is known: the sender receives its first answer, or the reason to choose another id.
        return log, []
    version = context.view.version if context.view else 0
    refusal = refusal_of(request, context) or _blocking_request(log, request, now)
    if refusal:
        # The job cannot accept the request, or another one is under way.
        answer = Answer("refused", refusal, version)
        return with_entry(log, LoggedRequest(request, answer, answer, now, now)), []
    if isinstance(request.what, Release):
        return _release(log, request, context, now)
    if (displaced := current(log)) is not None:
        # Only a stop gets here while another request is under way.
        log = _with_end(log, displaced, "refused", "the job was told to stop", context)
    return _accept(log, request, context, now)


def _blocking_request(log: RequestLog, request: Asked, now: float) -> str | None:
    """The reason why the request under way blocks this request; ``None`` if this request need not wait."""
    other = current(log)
    if other is None or isinstance(request.what, Release):
        # No request is under way, or its progress does not matter.
        return None
    if isinstance(request.what, StopTraining) and not isinstance(other.request.what, StopTraining):
        # A stop does not wait: it replaces the request under way.
        return None
    since = now - other.asked_at
    return f"{in_words(other.request.what)} is under way, asked for {since:.0f} s ago as {other.request.id!r}"


def _accept(log: RequestLog, request: Asked, context: AdmissionContext, now: float) -> LogTransition:
    assert context.view is not None
    size = context.view.size
    profile = request.what if isinstance(request.what, Profile) else None
    survey = start_survey(profile, initial_size=size, batch=context.batch) if profile is not None else None
    external = _resolved(request, size=size, context=context)
    answer = Answer("accepted", "", context.view.version)
    entry = LoggedRequest(request, answer, answer, now, now + context.patience_s, external, survey)
    sizes = log.sizes.changed(_sizes_after(log.sizes, request.what, context, now))
    log, is_news = replace(with_entry(log, entry), under_way=request.id, sizes=sizes), sizes is not log.sizes
    if survey is None and _is_met(external, context.view):
        # The view is already as requested.
        log = _with_end(log, entry, "carried out", "" if is_news else "it was so already", context)
    return log, [external]  # always sent: a policy may be about to change the view


def _resolved(request: Asked, *, size: int, context: AdmissionContext) -> Asked:
    """Converts a request to what is sent to the coordinator first: absolute sizes, host numbers, the command's name."""
    what: AnyRequest = request.what
    name = request.id
    match what:
        case Resize(target, keep):
            what = Resize(target, keep)  # only a policy limits the global batch; the hold is sent with every request
        case ScaleOut(_, keep, host) if host and context.view is not None:
            what = Resize(size_with(host, context.view, context), keep, host=context.hosts[host])
        case ScaleOut(count, keep):
            what = Resize(size + count, keep)
        case Leave(peers, "now", keep=keep):
            going = tuple(dict.fromkeys(peers))
            what = Leave(going, "now", size - len(going), keep)
        case Migrate(peer, host):
            what = Leave((peer,), "replaced", size, host=context.hosts[host])
        case Profile(_, maximum, _, keep):
            what, name = Resize(maximum, keep), f"{name}/0"
        case SetLimits():
            limits = what.over(context.limits)
            what = structs.replace(what, minimum=limits.minimum, maximum=limits.maximum)
    return Asked(what, f"kungfu {in_words(request.what)}", id=name)


def _sizes_after(sizes: SizeLimits, what: AnyRequest, context: AdmissionContext, now: float) -> SizeLimits:
    """The limits of the size once this request is accepted: any change of the size by hand replaces a hold."""
    match what:
        case Resize(size, hold_s=hold_s) if hold_s is not None and hold_s < math.inf:
            return replace(sizes, hold=Hold(size, context.time + hold_s, now + hold_s))
        case Resize(size, hold_s=hold_s):
            return replace(sizes, hold=None if hold_s is None else Hold(size))
        case ScaleOut() | Leave() | Release():
            return replace(sizes, hold=None)
        case SetLimits(minimum, maximum):
            least, most = sizes.minimum if minimum is None else minimum, sizes.maximum if maximum is None else maximum
            return replace(sizes, minimum=least, maximum=most)
        # A migration keeps the size, and a profile returns to it.
        case _:
            return sizes


def _release(log: RequestLog, request: Asked, context: AdmissionContext, now: float) -> LogTransition:
    """Ends the hold at once, beside a request under way."""
    sizes = log.sizes.changed(_sizes_after(log.sizes, request.what, context, now))
    version, reason = context.view.version if context.view else 0, "" if log.hold else "the size was not held"
    first, newest = Answer("accepted", "", version), Answer("carried out", reason, version)
    externals = [] if sizes is log.sizes else [_notice(f"kungfu {in_words(request.what)}")]
    return replace(with_entry(log, LoggedRequest(request, first, newest, now, now)), sizes=sizes), externals


def _with_hold_ended(log: RequestLog, event: Event, now: float) -> LogTransition:
    """Ends a hold that has expired, and informs a coordinator whose terms lack the newest limits of the size."""
    hold = log.hold
    match event:
        case Tick() if hold is not None and hold.expires is not None and now >= hold.expires:
            sizes = log.sizes.changed(replace(log.sizes, hold=None))
            return replace(log, sizes=sizes), [_notice(f"the end of the hold at {hold.size}")]
        # The view has begun without them, since its coordinator was lost with the message, or is a joiner.
        case ViewStarted(terms=terms) if terms.sizes.revision < log.sizes.revision:
            return log, [_notice("the limits of the size")]
    return log, []


def _lasting(log: RequestLog, what: AnyRequest, now: float) -> str:
    """The part of the request under way that remains in force although its size was not reached, as text."""
    match what:
        # A hold that the log still has is the request's own: only a release is accepted beside it.
        case Resize(hold_s=hold_s) if hold_s is not None and log.hold is not None:
            left_s = log.hold.seconds_left(now)
            lasting = "" if left_s is None else f" for {left_s:.0f} s more"
            return f"; the hold stays in force{lasting}, until kungfu resize --release"
        case SetLimits():
            return "; the limits stay in force"
    return ""


def _notice(by: str) -> Asked:
    """The request that informs the coordinator of the limits of the size, which are sent with every request."""
    return Asked(SetLimits(), by, id=AGENT)


def _is_met(external: Asked | None, view: View | None) -> bool:
    """True if the view is as requested; always False for a checkpoint or a stop, whose completion is an event."""
    if view is None or external is None:
        return False
    match external.what:
        case Resize(size):
            return view.size == size
        case SetLimits(minimum, maximum):
            return (minimum or 0) <= view.size <= (maximum or view.size)
        case Leave(peers):
            return all(view.rank_of(peer) is None for peer in peers)
        case _:
            return False


def _has_size(view: View | None, survey: Survey) -> bool:
    """True if the view has the size that a profile measures next, or the initial size if everything is measured."""
    return view is not None and view.size == survey.goal.size


def _on_view_changed(log: RequestLog, entry: LoggedRequest, context: AdmissionContext, now: float) -> LogTransition:
    if entry.survey is not None and entry.external is not None and isinstance(entry.external.what, SetBatch):
        # A profile sets batches in this view: a new coordinator needs the batch, another size comes before it.
        log, externals = _advance_profile(log, entry, context, now)
        return log, externals or [entry.external]
    if not _is_met(entry.external, context.view):
        # The view is not as requested: it may have a new coordinator, which needs the request.
        return log, [entry.external] if entry.external else []
    if entry.survey is not None:
        # A profile has reached its next size.
        return _advance_profile(log, entry, context, now)
    return _with_end(log, entry, "carried out", "", context), []


def _on_coordinator_replied(
    log: RequestLog, entry: LoggedRequest, event: CoordinatorReplied, context: AdmissionContext, now: float
) -> LogTransition:
    if entry.external is None or entry.external.id != event.external:
        # The answer is to an older request.
        return log, []
    if event.refusal:
        # The coordinator cannot carry out the request: the disk for a checkpoint is full, for example.
        why = f"{event.refusal}{_lasting(log, entry.request.what, now)}"
        return _with_end(log, entry, "refused", why, context), _back_to_initial(entry)
    if not isinstance(entry.external.what, SaveCheckpoint):
        # The view, or the end of training, shows when other requests are carried out.
        return log, []
    return _with_end(log, entry, "carried out", event.result, context), []


def _with_end(
    log: RequestLog, entry: LoggedRequest, state: RequestState, reason: str, context: AdmissionContext
) -> RequestLog:
    version = context.view.version if context.view else 0
    found = entry.survey.measured if entry.survey else ()
    return replace(with_entry(log, replace(entry, newest=Answer(state, reason, version, found))), under_way=None)


def _advance_profile(log: RequestLog, entry: LoggedRequest, context: AdmissionContext, now: float) -> LogTransition:
    """Continues a profile after its next size was reached, or more steps were measured."""
    survey, external = entry.survey, entry.external
    assert survey is not None
    assert external is not None
    newest = replace(entry.newest, points=survey.measured)
    entry = replace(entry, newest=newest, until=now + context.patience_s)
    order = _next_order(entry, survey, context.view)
    if order.what != external.what:
        # The coordinator is sent the next size, or the next batch once the view has the size; at last the initial ones.
        entry = replace(entry, external=order)
        if not _is_met(order, context.view):
            return with_entry(log, entry), [order]
    if survey.is_over and _has_size(context.view, survey):
        # Everything is measured, and the job is back at its initial size and batch.
        return _with_end(log, entry, "carried out", "", context), []
    return with_entry(log, entry), []


def _next_order(entry: LoggedRequest, survey: Survey, view: View | None) -> Asked:
    """The order that brings the job to the survey's next goal: its size, or its batch if the view has the size."""
    assert entry.external is not None
    assert isinstance(entry.request.what, Profile)
    goal, name = survey.goal, f"{entry.request.id}/{len(survey.measured)}"
    if goal.batch is not None and _has_size(view, survey):
        return replace(entry.external, id=f"{name}/batch", what=SetBatch(goal.batch))
    return replace(entry.external, id=name, what=Resize(goal.size, entry.request.what.keep))


def _back_to_initial(entry: LoggedRequest) -> list[Asked]:
    """The orders that return the job to its initial size and batch after an unfinished profile; else empty."""
    if entry.survey is None or entry.external is None or not isinstance(entry.request.what, Profile):
        # Only a profile changes the size and the batch temporarily.
        return []
    why, initial = "back to the size before a profile that did not come to its end", entry.survey.initial
    what = Resize(initial.size, entry.request.what.keep)
    home = replace(entry.external, what=what, by=why, id=f"{entry.request.id}/home")
    if initial.batch is None:
        return [home]
    return [home, replace(home, what=SetBatch(initial.batch), id=f"{home.id}/batch")]
