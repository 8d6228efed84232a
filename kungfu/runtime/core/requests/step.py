"""The life of requests: a pure function of what was asked and of what the job did since.

``step(log, event, context, now)`` gives the next log and the external requests that the leader is to be told.
A request is

| state       | since                                                                                        |
| ----------- | -------------------------------------------------------------------------------------------- |
| accepted    | nothing spoke against it: the leader was told                                                |
| carried out | the view in force is as asked for, the leader says so, or training is over (``stop``)        |
| refused     | it was asked and did not fit; or later: the leader cannot, the job ended, a ``stop`` came    |
| expired     | nothing of that happened within the job's patience; the job may still come to it             |

One request at a time is under way; only ``stop`` does not wait for another, it takes its place. A repeated id changes
nothing, however long ago it was given. A view that is not yet as asked for may have another leader: it is told too, and
a leader that was told before knows the external request by its id.
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
    """The next log, and what the leader is to be told.

    Args:
        log: The requests so far.
        event: What happened.
        context: The job as it is now.
        now: Seconds of the agent's clock.
    """
    if isinstance(event, RequestSubmitted):
        return _on_submitted(log, event.request, context, now)
    entry = current(log)
    if entry is None:
        # Nothing is under way that the event could concern.
        return log, []
    match event:
        case ViewChanged():
            return _on_view_changed(log, entry, context, now)
        case LeaderReplied():
            return _on_leader_replied(log, entry, event, context)
        # Steps count for a profile while the view has the size that is measured.
        case StepsMeasured(steps) if entry.survey is not None and _is_met(entry.external, context.view):
            return _advance_profile(log, replace(entry, survey=with_measured(entry.survey, steps)), context, now)
        # Training has ended: a stop asked for that, and nothing else can happen any more.
        case TrainingEnded() if isinstance(entry.request.action, StopTraining):
            return _with_end(log, entry, "carried out", "training has ended", context), []
        case TrainingEnded():
            return _with_end(log, entry, "refused", context.end_reason, context), []
        # Too late: the asker need not wait any longer.
        case TimePassed() if now > entry.until:
            why = f"not carried out within {entry.until - entry.asked_at:.0f} s; the job may still come to it"
            return _with_end(log, entry, "expired", why, context), _back_to_initial_size(entry)
        case _:
            return log, []


def _on_submitted(log: RequestLog, request: JobRequest, context: AdmissionContext, now: float) -> LogTransition:
    if request.id in log.entries or refusal_of_id(log, request) is not None:
        # The id was given before: the sender hears its first answer, or why it needs another id.
        return log, []
    version = context.view.version if context.view else 0
    refusal = refusal_of(request, context) or _blocking_request(log, request, now)
    if refusal:
        # It does not fit the job, or waits for another one.
        answer = Answer("refused", refusal, version)
        return with_entry(log, LoggedRequest(request, answer, answer, now, now)), []
    if (displaced := current(log)) is not None:
        # Only a stop comes this far beside another request.
        log = _with_end(log, displaced, "refused", "the job was told to stop", context)
    return _accept(log, request, context, now)


def _blocking_request(log: RequestLog, request: JobRequest, now: float) -> str | None:
    """Why the request that is under way keeps this one from being taken; ``None`` where it does not."""
    other = current(log)
    if other is None:
        # Nothing is under way.
        return None
    if isinstance(request.action, StopTraining) and not isinstance(other.request.action, StopTraining):
        # A stop does not wait: it takes the place of what is under way.
        return None
    since = now - other.asked_at
    return f"{in_words(other.request.action)} is under way, asked for {since:.0f} s ago as {other.request.id!r}"


def _accept(log: RequestLog, request: JobRequest, context: AdmissionContext, now: float) -> LogTransition:
    assert context.view is not None
    size, action = context.view.size, request.action
    survey = start_survey(action, initial_size=size) if isinstance(action, Profile) else None
    external = _external_request(request.id, action, size=size, hosts=context.hosts)
    answer = Answer("accepted", "", context.view.version)
    entry = LoggedRequest(request, answer, answer, now, now + context.patience_s, external, survey)
    log = replace(with_entry(log, entry), under_way=request.id)
    if survey is None and _is_met(external, context.view):
        # The view is as asked for by chance.
        log = _with_end(log, entry, "carried out", "it was so already", context)
    return log, [external]  # in any case: a policy may be about to change what is so already


def _external_request(name: str, action: Action, *, size: int, hosts: Mapping[str, int]) -> ExternalRequest:
    """What the leader is told first of an action."""
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


def _is_met(external: ExternalRequest | None, view: View | None) -> bool:
    """Whether the view is as the external request asks for; of a checkpoint and a stop the leader tells instead."""
    if view is None or external is None:
        return False
    match external.kind:
        case "resize":
            return view.size == external.size
        case "leave" | "replace":
            return all(view.rank_of(peer) is None for peer in external.peers)
        case _:
            return False


def _on_view_changed(log: RequestLog, entry: LoggedRequest, context: AdmissionContext, now: float) -> LogTransition:
    if not _is_met(entry.external, context.view):
        # Another change of the view: its leader may be another one that was not told yet.
        return log, [entry.external] if entry.external else []
    if entry.survey is not None:
        # A profile has reached its next size.
        return _advance_profile(log, entry, context, now)
    return _with_end(log, entry, "carried out", "", context), []


def _on_leader_replied(
    log: RequestLog, entry: LoggedRequest, event: LeaderReplied, context: AdmissionContext
) -> LogTransition:
    if entry.external is None or entry.external.id != event.external:
        # The answer is to an older request.
        return log, []
    if event.refusal:
        # The leader cannot: the disk for a checkpoint is full, say.
        return _with_end(log, entry, "refused", event.refusal, context), _back_to_initial_size(entry)
    if entry.external.kind != "checkpoint":
        # The view, and the end of training, show whether the others are carried out.
        return log, []
    return _with_end(log, entry, "carried out", event.result, context), []


def _with_end(
    log: RequestLog, entry: LoggedRequest, state: RequestState, reason: str, context: AdmissionContext
) -> RequestLog:
    version = context.view.version if context.view else 0
    found = entry.survey.measured if entry.survey else ()
    return replace(with_entry(log, replace(entry, newest=Answer(state, reason, version, found))), under_way=None)


# ---- a profile -------------------------------------------------------------------------------------------------------


def _advance_profile(log: RequestLog, entry: LoggedRequest, context: AdmissionContext, now: float) -> LogTransition:
    """A profile goes on: a size of its survey was reached, or more steps of it were measured."""
    survey, external = entry.survey, entry.external
    assert survey is not None
    assert external is not None
    newest = replace(entry.newest, points=survey.measured)
    entry = replace(entry, newest=newest, until=now + context.patience_s)
    if survey.goal != external.size:
        # This size is measured: the leader is told the next one, or the size that the job had before.
        external = replace(external, id=f"{entry.request.id}/{len(survey.measured)}", size=survey.goal)
        entry = replace(entry, external=external)
        if not _is_met(external, context.view):
            # The job does not happen to have that size already.
            return with_entry(log, entry), [external]
    if survey.is_measured and _is_met(external, context.view):
        # All sizes are measured, and the job has the size that it had before.
        return _with_end(log, entry, "carried out", "", context), []
    return with_entry(log, entry), []


def _back_to_initial_size(entry: LoggedRequest) -> list[ExternalRequest]:
    """What takes the job of a profile that does not come to its end back to the size that it had."""
    if entry.survey is None or entry.external is None:
        # Only a profile changes the size for a while.
        return []
    why = "back to the size before a profile that did not come to its end"
    return [replace(entry.external, why=why, size=entry.survey.initial_size, id=f"{entry.request.id}/home")]
