"""A run's events as a narrative: what went wrong first, then what happened in its order, then what it came to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from kungfu.cli.report.changes import changes, recovered, rescaled, stood_still
from kungfu.cli.report.decisions import (
    asked,
    contest,
    is_by_itself,
    reasons,
    refused,
    requested_by_hook,
)
from kungfu.cli.report.one_line import one_line
from kungfu.cli.report.values import counted, duration, figure, finite_number, peers_named
from kungfu.event_log.events import (
    CalledEvent,
    CheckpointEvent,
    DecisionEvent,
    DismissedEvent,
    FailedEvent,
    FinishedEvent,
    HeldEvent,
    LoggedEvent,
    LostEvent,
    OfferedEvent,
    PeerEndedEvent,
    Percentiles,
    RecordEvent,
    RecoveredEvent,
    RefusedEvent,
    RescaleEvent,
    RoundedEvent,
    RuleEvent,
    RulesEvent,
    SetEvent,
    SettingRun,
    ShadowEvent,
    SpanEvent,
    SpawnedEvent,
    SupersededEvent,
    ViewEvent,
    joined_to_run,
)
from kungfu.event_log.job import Job, fold

HeadlineAndDetails = tuple[str, list[str]]

# What a view, the end of training or the top of the narrative says better.
_UNTOLD = (RecordEvent, SpawnedEvent, OfferedEvent, FailedEvent, SpanEvent, RulesEvent)


@dataclass(frozen=True)
class Paragraph:
    """An event ``at_s`` seconds after the start (``None``: of no one moment), as a headline with details."""

    at_s: float | None
    headline: str
    details: tuple[str, ...] = ()


def narrative(events: Sequence[LoggedEvent], *, now: float | None = None) -> list[Paragraph]:
    """The narrative of `events`: the root cause of a failure first, then each event, then what it came to.

    Args:
        events: The events of a run.
        now: The time, in seconds since 1970, where the job is known to run; what it came to is so far, then.

    >>> narrative([ViewEvent(time=5.0, version=1, peers=(0, 1))])[0]
    Paragraph(at_s=0.0, headline='training begins with 2 peers: peers 0 and 1', details=())
    """
    began = next((event.time for event in events if event.time is not None), None)
    expected = {event.peer for event in events if isinstance(event, DismissedEvent | LostEvent)}
    told = _merged(event for event in events if is_told(event, expected=expected))
    causes = [paragraph(event, None) for event in events if isinstance(event, FailedEvent)]
    return [*causes, *(paragraph(one, began) for one in told), *_conclusion(fold(events), now)]


def _merged(events: Iterable[LoggedEvent]) -> Iterator[LoggedEvent | SettingRun]:
    """The events with each run of settings of one rule as one, which is told once something else is."""
    runs: dict[tuple[str, str], SetEvent | SettingRun] = {}
    for event in events:
        if isinstance(event, SetEvent) and event.what != "stop":
            key = event.rule, event.what
            runs[key] = joined_to_run(runs.get(key), event)
        else:
            yield from (*runs.values(), event)
            runs = {}
    yield from runs.values()


def is_told(event: LoggedEvent, *, expected: Collection[int]) -> bool:
    """Whether an event has a paragraph of its own; ``expected`` are the peers that were dismissed or lost."""
    if isinstance(event, PeerEndedEvent):
        # Where the process was dismissed or lost, that was told already.
        return event.peer not in expected and event.how != "exit code 0"
    # Told once: the same variables go on to differ.
    if isinstance(event, RoundedEvent):
        return not event.again
    # The end of a peer that reached the end of training is told in the conclusion.
    if isinstance(event, FinishedEvent):
        return event.leaving
    return not isinstance(event, _UNTOLD) and not is_by_itself(event)


def paragraph(one: LoggedEvent | SettingRun, began: float | None) -> Paragraph:
    """The paragraph of an event, or of a setting that was changed again and again; ``began`` is when the run did."""
    at = one.first.time if isinstance(one, SettingRun) else one.time
    headline, details = _TELLERS.get(type(one), _plain)(one)
    return Paragraph(None if at is None or began is None else at - began, headline, tuple(details))


# ---- single events ---------------------------------------------------------------------------------------------------


def _plain(event: LoggedEvent) -> HeadlineAndDetails:
    return one_line(event), []


def _view(event: ViewEvent) -> HeadlineAndDetails:
    peers = f"{counted(len(event.peers), 'peer')}: {peers_named(event.peers)}"
    # The first view is no change of one.
    if event.version == 1:
        return f"training begins with {peers}", []
    return f"view {figure(event.version)} is in force, {peers}", []


def _decision(event: DecisionEvent) -> HeadlineAndDetails:
    shown = reasons(event.saw, without=("size", "target", *event.won, *event.lost))
    target = event.saw.get("target")
    makes = f", which makes {figure(target)}" if finite_number(target) not in (None, float(event.asked)) else ""
    saw = [f"it saw: {shown}{makes}"] if shown else []
    headline = f"step {figure(event.step)}: {event.rule} wants {asked(event)}"
    return headline, [*saw, *contest(event), f"done: {event.done}"]


def _called(event: CalledEvent) -> HeadlineAndDetails:
    given = reasons(event.saw, without=())
    headline = f"step {figure(event.step)}: the hook {event.rule} was called; {requested_by_hook(event)}"
    ignored = [f"passed over: {event.ignored}"] if event.ignored else []
    return headline, [*([f"it was given: {given}"] if given else []), *ignored]


def _rule(event: RuleEvent) -> HeadlineAndDetails:
    """The line of a rule without what it saw, which is a detail of its own."""
    return one_line(replace(event, saw={})), _saw(event)


def _saw(event: RuleEvent) -> list[str]:
    saw = reasons(event.saw, without=())
    return [f"it saw: {saw}"] if saw else []


def _set_repeatedly(run: SettingRun) -> HeadlineAndDetails:
    return one_line(run), [f"at last {one}" for one in _saw(run.last)]


def _refused(event: RefusedEvent) -> HeadlineAndDetails:
    wanted = refused(event)
    headline = f"refused: {event.rule} wanted {wanted}" if event.rule else f"{wanted} could not be had"
    return headline, [f"why: {event.reason}", f"training goes on with {counted(event.size, 'peer')}"]


def _lost(event: LostEvent) -> HeadlineAndDetails:
    """A peer that ended in the middle: its own last word, and where to read on."""
    last = [f"its last error: {event.error}"] if event.error and event.error not in event.how else []
    return one_line(replace(event, error="")), [*last, f"what it printed is in peers/peer-{figure(event.peer)}.log"]


def _peer_ended(event: PeerEndedEvent) -> HeadlineAndDetails:
    return f"peer {figure(event.peer)} ended: {event.how}", []


def _failed(event: FailedEvent) -> HeadlineAndDetails:
    # The cause may be that of the job, and of no one peer.
    log = f"peers/peer-{event.peer}.log" if event.peer >= 0 else "peers/"
    details = [f"what it printed is in {log}", f"the job's exit code is {figure(event.code)}"]
    return f"this run failed: {event.error}", details


def _checkpoint(event: CheckpointEvent) -> HeadlineAndDetails:
    if event.error:
        return one_line(event), ["training went on without it; what was there before is as it was"]
    held, took = duration(event.stop_s), duration(event.seconds)
    return one_line(event), [f"rank 0 held the others for {held}, and wrote for {took} while all trained on"]


_TELLERS: Mapping[type, Callable[[Any], HeadlineAndDetails]] = {
    ViewEvent: _view,
    DecisionEvent: _decision,
    RescaleEvent: rescaled,
    CalledEvent: _called,
    SettingRun: _set_repeatedly,
    CheckpointEvent: _checkpoint,
    **dict.fromkeys((SetEvent, ShadowEvent, HeldEvent, SupersededEvent), _rule),
    RefusedEvent: _refused,
    LostEvent: _lost,
    RecoveredEvent: recovered,
    PeerEndedEvent: _peer_ended,
    FailedEvent: _failed,
}


# ---- the whole run ---------------------------------------------------------------------------------------------------


def _conclusion(job: Job, now: float | None) -> Iterator[Paragraph]:
    runs = now is not None and job.ending is None
    lasting = _lasting_s(job, now if runs else None)
    details = [_totals(job, lasting), *_finishers(job), *_not_a_number(job), *_lacking(job)]
    waiting = (f"{one.rule} wanted {asked(one)} at step {figure(one.step)}" for one in job.waiting)
    details += [f"still waits for joiners: {one}" for one in waiting]
    # The agent writes the end; without it, nobody knows who does not see it run.
    if job.ending is None and not runs:
        details.append("the record does not say how it ended: it is still running, or its agent was killed")
    took = f"in all {duration(lasting)} of training" if lasting is not None else "training never began"
    yield Paragraph(None, _so_far(job, lasting) if runs else took, tuple(details))


def _so_far(job: Job, lasting: float | None) -> str:
    """The headline of the end, of a job that has none yet."""
    if lasting is None:
        return "the job runs, and gets ready to train"
    if job.finished:
        return f"the job runs: its training is over after {duration(lasting)}, and its program goes on"
    return f"the job runs: {counted(job.size, 'peer')} train, for {duration(lasting)} so far"


def _not_a_number(job: Job) -> list[str]:
    return [
        f"the {one.what} is no number since step {figure(one.step)}, where it became {figure(one.value)}"
        for one in job.not_finite.values()
    ]


def _lacking(job: Job) -> list[str]:
    """The sums above are of what was written down."""
    lost = counted(job.unrecorded, "event")
    return [f"{lost} could not be written down, and what happened there is not counted"] if job.unrecorded else []


def _lasting_s(job: Job, now: float | None) -> float | None:
    """Seconds from the first view to the end of training; without one to `now`, or to what was written last.

    What follows the end of training is the rest of the user's program.
    """
    finished_at = max((one.time for one in job.finished if one.time is not None), default=None)
    last = finished_at or now or job.last_at
    return None if job.trained_at is None or last is None else max(0.0, last - job.trained_at)


def _totals(job: Job, lasting: float | None) -> str:
    stood = stood_still(job)
    share = f" ({100 * job.stopped_s / lasting:.2g} % of it)" if lasting and stood else ""
    return f"{changes(job)}{stood}{share}"


def _finishers(job: Job) -> list[str]:
    # All were lost, stopped or dismissed before the end.
    if not job.finished:
        return []
    steps, traces = max(one.steps for one in job.finished), max(one.traces for one in job.finished)
    ended = f"{counted(len(job.finished), 'peer')} trained to the end: {counted(steps, 'step')}"
    return [f"{ended}, {counted(traces, 'trace')} per peer", *paces(job)]


def paces(job: Job) -> list[str]:
    """The times that the steps and the stops of a run took, on the peer that made the most steps."""
    if job.longest is None:
        return []
    # Losses are stops, too, and count among them.
    stop = "a stop" if job.counts.get("recovered") else "a rescale"
    named = {"a step": job.longest.step_s, stop: job.longest.stop_s}
    return [_pace(name, took) for name, took in named.items() if took is not None and took.count]


def _pace(name: str, took: Percentiles) -> str:
    marks = f"{duration(took.p50)} (median), {duration(took.p90)} (90 %), {duration(took.p99)} (99 %)"
    return f"{name} took {marks}, at most {duration(took.max)}; {figure(took.count)} counted"
