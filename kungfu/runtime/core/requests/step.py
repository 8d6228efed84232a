"""What becomes of requests: a pure function of what was asked and of what the job did since.

``step(log, event, context, now)`` gives the next log and what the leader is to be told. A request is

| state       | since                                                                                        |
| ----------- | -------------------------------------------------------------------------------------------- |
| accepted    | nothing spoke against it: the leader was told                                                |
| carried out | the view in force is as asked for, the leader says so, or training is over (``stop``)        |
| refused     | it was asked and did not fit; or later: the leader cannot, the job ended, a ``stop`` came    |
| expired     | nothing of that happened within the job's patience; the job may still come to it             |

One request at a time is under way; only ``stop`` does not wait for another, it takes its place. A repeated id changes
nothing, however long ago it was given. A view that is not yet as asked for may have another leader: it is told too, and
who was told before knows the demand by its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kungfu.runtime.core.barrier_requests import ExternalRequest
from kungfu.runtime.core.requests.admission import AdmissionContext, refusal_of
from kungfu.runtime.core.requests.job_request import (
    Action,
    JobRequest,
    Migrate,
    Profile,
    Resize,
    SaveCheckpoint,
    ScaleIn,
    ScaleOut,
    StopTraining,
    in_words,
)
from kungfu.runtime.core.requests.profiling import start_survey, with_measured
from kungfu.runtime.core.requests.request_log import (
    Answer,
    Event,
    LeaderReplied,
    LoggedRequest,
    RequestLog,
    RequestState,
    RequestSubmitted,
    StepsMeasured,
    TimePassed,
    TrainingEnded,
    ViewChanged,
    current,
    refusal_of_id,
    with_entry,
)
from kungfu.runtime.core.view import View

__all__ = ["LogTransition", "step"]

LogTransition = tuple[RequestLog, list[ExternalRequest]]


def step(log: RequestLog, event: Event, context: AdmissionContext, now: float) -> LogTransition:
    """The next log, and the demands that the leader is to be told."""
    if isinstance(event, RequestSubmitted):
        return _asked(log, event.request, context, now)
    entry = current(log)
    if entry is None:
        return log, []
    match event:
        case ViewChanged():
            return _viewed(log, entry, context, now)
        case LeaderReplied():
            return _heard(log, entry, event, context)
        case StepsMeasured(steps) if entry.survey is not None and _is_met(entry.demand, context.view):
            return _surveyed(log, replace(entry, survey=with_measured(entry.survey, steps)), context, now)
        case TrainingEnded() if isinstance(entry.request.action, StopTraining):
            return _ended(log, entry, "carried out", "training has ended", context), []
        case TrainingEnded():
            return _ended(log, entry, "refused", context.over, context), []
        case TimePassed() if now > entry.until:
            why = f"not carried out within {entry.until - entry.asked_at:.0f} s; the job may still come to it"
            return _ended(log, entry, "expired", why, context), _homewards(entry)
        case _:
            return log, []


def _asked(log: RequestLog, request: JobRequest, context: AdmissionContext, now: float) -> LogTransition:
    if request.id in log.entries or refusal_of_id(log, request) is not None:
        return log, []
    version = context.view.version if context.view else 0
    refusal = refusal_of(request, context) or _in_its_way(log, request, now)
    if refusal:
        answer = Answer("refused", refusal, version)
        return with_entry(log, LoggedRequest(request, answer, answer, now, now)), []
    if (displaced := current(log)) is not None:
        log = _ended(log, displaced, "refused", "the job was told to stop", context)
    return _accepted(log, request, context, now)


def _in_its_way(log: RequestLog, request: JobRequest, now: float) -> str | None:
    other = current(log)
    if other is None or (
        isinstance(request.action, StopTraining) and not isinstance(other.request.action, StopTraining)
    ):
        return None
    since = now - other.asked_at
    return f"{in_words(other.request.action)} is under way, asked for {since:.0f} s ago as {other.request.id!r}"


def _accepted(log: RequestLog, request: JobRequest, context: AdmissionContext, now: float) -> LogTransition:
    assert context.view is not None
    size, action = context.view.size, request.action
    survey = start_survey(action, home=size) if isinstance(action, Profile) else None
    demand = _demand(request.id, action, size=size, hosts=context.hosts)
    answer = Answer("accepted", "", context.view.version)
    entry = LoggedRequest(request, answer, answer, now, now + context.patience_s, demand, survey)
    log = replace(with_entry(log, entry), under_way=request.id)
    if survey is None and _is_met(demand, context.view):
        log = _ended(log, entry, "carried out", "it was so already", context)
    return log, [demand]  # in any case: a policy may be about to change what is so already


def _demand(name: str, action: Action, *, size: int, hosts: Mapping[str, int]) -> ExternalRequest:
    """What the leader is told first."""
    why = f"kungfu {in_words(action)}"
    match action:
        case Resize(target, keep):
            return ExternalRequest("resize", why, size=target, id=name, keep=keep)
        case ScaleOut(count, keep):
            return ExternalRequest("resize", why, size=size + count, id=name, keep=keep)
        case ScaleIn(peers, keep):
            going = tuple(dict.fromkeys(peers))
            return ExternalRequest("leave", why, size=size - len(going), peers=going, id=name, keep=keep)
        case Migrate(peer, host):
            return ExternalRequest("replace", why, size=size, peers=(peer,), id=name, host=hosts[host])
        case SaveCheckpoint():
            return ExternalRequest("checkpoint", why, id=name)
        case StopTraining():
            return ExternalRequest("stop", why, id=name)
        case Profile(_, maximum, _, keep):
            return ExternalRequest("resize", why, size=maximum, id=f"{name}/0", keep=keep)


def _is_met(demand: ExternalRequest | None, view: View | None) -> bool:
    """Whether the view is as the demand asks for."""
    if view is None or demand is None:
        return False
    match demand.kind:
        case "resize":
            return view.size == demand.size
        case "leave" | "replace":
            return all(view.rank_of(peer) is None for peer in demand.peers)
        case _:
            return False


def _viewed(log: RequestLog, entry: LoggedRequest, context: AdmissionContext, now: float) -> LogTransition:
    if not _is_met(entry.demand, context.view):
        return log, [entry.demand] if entry.demand else []
    if entry.survey is not None:
        return _surveyed(log, entry, context, now)
    return _ended(log, entry, "carried out", "", context), []


def _heard(log: RequestLog, entry: LoggedRequest, event: LeaderReplied, context: AdmissionContext) -> LogTransition:
    if entry.demand is None or entry.demand.id != event.demand:
        return log, []  # of an older request
    if event.refusal:
        return _ended(log, entry, "refused", event.refusal, context), _homewards(entry)
    if entry.demand.kind != "checkpoint":
        return log, []  # the view, and the end of training, speak for themselves
    return _ended(log, entry, "carried out", event.result, context), []


def _ended(
    log: RequestLog, entry: LoggedRequest, state: RequestState, reason: str, context: AdmissionContext
) -> RequestLog:
    version = context.view.version if context.view else 0
    found = entry.survey.found if entry.survey else ()
    return replace(with_entry(log, replace(entry, newest=Answer(state, reason, version, found))), under_way=None)


# ---- a profile -------------------------------------------------------------------------------------------------------


def _surveyed(log: RequestLog, entry: LoggedRequest, context: AdmissionContext, now: float) -> LogTransition:
    """A size of the survey was reached, or more steps of it were measured."""
    survey, demand = entry.survey, entry.demand
    assert survey is not None
    assert demand is not None
    newest = replace(entry.newest, points=survey.found)
    entry = replace(entry, newest=newest, until=now + context.patience_s)
    if survey.goal != demand.size:
        demand = replace(demand, id=f"{entry.request.id}/{len(survey.found)}", size=survey.goal)
        entry = replace(entry, demand=demand)
        if not _is_met(demand, context.view):
            return with_entry(log, entry), [demand]
    if survey.is_measured and _is_met(demand, context.view):
        return _ended(log, entry, "carried out", "", context), []
    return with_entry(log, entry), []


def _homewards(entry: LoggedRequest) -> list[ExternalRequest]:
    """Of a profile that does not come to its end: back to the size that the job had."""
    if entry.survey is None or entry.demand is None:
        return []
    why = "back to the size before a profile that did not come to its end"
    return [replace(entry.demand, why=why, size=entry.survey.home, id=f"{entry.request.id}/home")]
