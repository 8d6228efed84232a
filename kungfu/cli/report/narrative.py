"""A run's events as a narrative: the cause of a failure, the events in their order, and the totals of the run.

Of a running job, also its newest change with the reason, and the peers for which it waits, in a few words.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from kungfu.event_log.events import (
    DismissedEvent,
    FailedEvent,
    LoggedEvent,
    LostEvent,
    PeerEndedEvent,
    RestartedEvent,
    SetEvent,
    SettingRun,
    ViewEvent,
    joined_to_run,
)
from kungfu.event_log.job import Job, fold
from kungfu.event_log.values import counted, duration, figure, peers_named, rough_duration


@dataclass(frozen=True)
class Paragraph:
    """The headline and details of an event or of totals; ``at_s`` is seconds after the start, ``None`` for no time."""

    at_s: float | None
    headline: str
    details: tuple[str, ...] = ()
    event: LoggedEvent | SettingRun | None = None  # None for the totals of the run


@dataclass(frozen=True)
class RunTotals:
    """The totals of a run.

    Attributes:
        training_s: Seconds from the first view to the end of training, or until now; None if training never began.
        stopped_s: Seconds for which changes of the membership stopped training.
        rescales: Changes of the membership, except for losses and the replacements of lost peers.
        recoveries: Losses of peers that the others survived.
        lost_peers: Lost peers.
        unrecorded: Events that could not be written to the record, and are not counted.
    """

    training_s: float | None
    stopped_s: float
    rescales: int
    recoveries: int
    lost_peers: int
    unrecorded: int


def narrative(events: Sequence[LoggedEvent], *, now: float | None = None) -> list[Paragraph]:
    """The narrative of `events`: the root cause of a failure first, then each event, then the totals.

    Args:
        now: The time until which totals count, in seconds since 1970; ``None`` if the job is not known to run.

    >>> from kungfu.event_log.events import ViewEvent
    >>> narrative([ViewEvent(time=5.0, version=1, peers=(0, 1))])[0].headline
    'training begins with 2 peers: peers 0 and 1'
    """
    began = next((event.time for event in events if event.time is not None), None)
    restarted = max((at for at, event in enumerate(events) if isinstance(event, RestartedEvent)), default=-1)
    causes = [paragraph(event, None) for event in events[restarted + 1 :] if isinstance(event, FailedEvent)]
    return [*causes, *_course(events, began), conclusion(fold(events), now)]


def _course(events: Sequence[LoggedEvent], began: float | None) -> Iterator[Paragraph]:
    """Yields the paragraphs of events in order; consecutive settings by one rule share a paragraph."""
    # The peers whose end is already reported: their processes were dismissed or lost.
    ended = {event.peer for event in events if isinstance(event, DismissedEvent | LostEvent)}
    runs: dict[tuple[str, str], SetEvent | SettingRun] = {}
    peers: tuple[int, ...] = ()
    for event in events:
        if isinstance(event, ViewEvent):
            before, peers = peers, event.peers
            # The view of another fit, or of a recovery that lost no peer.
            if peers == before:
                continue
        if isinstance(event, SetEvent) and event.what != "stop":
            key = event.rule, event.what
            runs[key] = joined_to_run(runs.get(key), event)
            continue
        shown = paragraph(event, began)
        if shown.headline and not isinstance(event, FailedEvent) and not is_ended(event, ended):
            yield from (paragraph(run, began) for run in runs.values())
            yield shown
            runs = {}
    yield from (paragraph(run, began) for run in runs.values())


def is_ended(event: LoggedEvent, peers: Container[int]) -> bool:
    """True if an event reports the end of the process of one of `peers`."""
    return isinstance(event, PeerEndedEvent) and event.peer in peers


def paragraph(event: LoggedEvent | SettingRun, began: float | None) -> Paragraph:
    """The paragraph of an event, or of a repeated setting; ``began`` is the start of the run."""
    at_s = None if event.time is None or began is None else event.time - began
    return Paragraph(at_s, event.headline(), event.details(), event)


# ---- the whole run ---------------------------------------------------------------------------------------------------


def totals(job: Job, now: float | None = None) -> RunTotals:
    """The totals of a run; of a running job, until the present time ``now``."""
    runs, tally = now is not None and job.ending is None, job.tally
    return RunTotals(
        _lasting_s(job, now if runs else None), tally.stopped_s, rescale_count(job), tally.counts.get("recovered", 0),
        tally.lost_peers, tally.unrecorded,
    )  # fmt: skip


def conclusion(job: Job, now: float | None = None) -> Paragraph:
    """The totals of a run as a paragraph; of a running job, until the present time ``now``."""
    runs = now is not None and job.ending is None
    lasting = totals(job, now).training_s
    stood = stood_still(job)
    share = f" ({100 * job.tally.stopped_s / lasting:.2g} % of it)" if lasting and stood else ""
    details = [f"{changes(job)}{stood}{share}", *_finishers(job)]
    if restarts := job.tally.counts.get("restarted"):
        again, were = counted(job.tally.steps_again, "step"), "was" if job.tally.steps_again == 1 else "were"
        details.append(f"{counted(restarts, 'restart')}, after which {again} {were} done again")
    details += [
        f"the {one.what} is no number since step {figure(one.step)}, where it became {figure(one.value)}"
        for one in job.not_finite.values()
    ]
    # The totals above cover only the recorded events.
    if job.tally.unrecorded:
        lost = counted(job.tally.unrecorded, "event")
        details.append(f"{lost} could not be written down, and what happened there is not counted")
    details += late_joiners(job) if job.ending else []
    waiting = (f"{one.rule} wanted {one.requested()} at step {figure(one.step)}" for one in job.waiting)
    details += [f"still waits for joiners: {one}" for one in waiting]
    if runs and job.limits is not None and job.limits.held is not None:
        details.append(job.limits.hold())
    # The agent records the end. Without this event, the record does not show if the job still runs.
    if job.ending is None and not runs:
        details.append("the record does not say how it ended: it is still running, or its agent was killed")
    took = f"in all {duration(lasting)} of training" if lasting is not None else "training never began"
    return Paragraph(None, _so_far(job, lasting) if runs else took, tuple(details))


def _so_far(job: Job, lasting: float | None) -> str:
    """The headline of the totals of a job that has not ended."""
    if lasting is None:
        return "the job runs, and gets ready to train"
    if job.finished:
        return f"the job runs: its training is over after {duration(lasting)}, and its program continues"
    return f"the job runs: {counted(job.size, 'peer')} train, for {duration(lasting)} so far"


def _lasting_s(job: Job, now: float | None) -> float | None:
    """Seconds from the first view to the end of training; before that end, to ``now`` or, if None, the newest event."""
    # The rest of the user's program runs after the end of training.
    finished_at = max((one.time for one in job.finished if one.time is not None), default=None)
    last = finished_at or now or job.last_at
    return None if job.trained_at is None or last is None else max(0.0, last - job.trained_at)


def _finishers(job: Job) -> list[str]:
    # All peers were lost, stopped or dismissed before the end.
    if not job.finished:
        return []
    steps, traces = max(one.steps for one in job.finished), max(one.traces for one in job.finished)
    ended = f"{counted(len(job.finished), 'peer')} trained to the end: {counted(steps, 'step')}"
    return [f"{ended}, {counted(traces, 'trace')} per peer", *paces(job)]


def late_joiners(job: Job) -> list[str]:
    """The joiners that were on their way when training ended, with the decisions that waited for them."""
    asked = [
        f"{one.rule} asked for {one.requested() if one.peers else counted(one.asked, 'peer')} at step "
        f"{figure(one.step)}; "
        for one in job.unmet
    ]
    lines = []
    for what, is_ready in (("not ready", False), ("ready too late to join", True)):
        late = [one.id for one in job.late_joiners if (one.state == "ready") is is_ready]
        was = "was" if len(late) == 1 else "were"
        lines += [f"{''.join(asked)}{peers_named(late)} {was} {what} when training ended"] if late else []
    return lines


def paces(job: Job) -> list[str]:
    """The durations of the steps and stops of a run, on the peer with the most steps."""
    if job.longest is None:
        return []
    # Losses stop the training as well, and count here.
    stop = "a stop" if job.tally.counts.get("recovered") else "a rescale"
    named = {"a step": job.longest.step_s, stop: job.longest.stop_s}
    return [
        f"{name} took {duration(took.p50)} (median), {duration(took.p90)} (90 %), {duration(took.p99)} (99 %), "
        f"at most {duration(took.max)}; {figure(took.count)} counted"
        for name, took in named.items() if took is not None and took.count
    ]  # fmt: skip


def changes(job: Job) -> str:
    """Membership changes by cause, as in "1 rescale and 2 recoveries"; a replacement counts as part of a recovery."""
    recoveries = job.tally.counts.get("recovered", 0)
    after = f" and {recoveries} recover{'y' if recoveries == 1 else 'ies'}" if recoveries else ""
    return f"{counted(rescale_count(job), 'rescale')}{after}"


def rescale_count(job: Job) -> int:
    """The number of membership changes, except for losses and the replacements of lost peers."""
    return job.tally.counts.get("rescale", 0) - job.tally.replacements


def stood_still(job: Job) -> str:
    """The time for which membership changes stopped the training, as text; empty if there were no changes."""
    changed = job.tally.counts.get("recovered") or job.tally.counts.get("rescale")
    return f", for which training stood still for {duration(job.tally.stopped_s)}" if changed else ""


# ---- the present of a job -------------------------------------------------------------------------------------------


def decision_words(job: Job) -> str:
    """The newest decision, refusal or membership change of a job, and the values behind it; empty before the first.

    >>> from kungfu.event_log.events import DecisionEvent
    >>> event = DecisionEvent(step=50, rule="gns_batch", saw={"noise_scale": 116.0}, size=2, asked=4, done="")
    >>> decision_words(Job().after(event))
    'step 50, gns_batch: 2 -> 4 peers, under way (noise scale 116)'
    """
    change = job.change
    if change is None:
        return ""
    behind = (one for one in reversed(job.decisions) if change is one.event or change is one.outcome)
    decision = next(behind, None)
    if decision is None:
        return change.brief()
    saw, is_open = decision.event.seen("step"), decision.is_open and job.ending is None
    return change.brief() + (", under way" if is_open else "") + (f" ({saw})" if saw else "")


def waiting_words(job: Job, *, now: float) -> str:
    """The peers for which a job waits, with the longest time; empty if it waits for none.

    Args:
        now: The present time, in seconds since 1970.

    >>> from kungfu.event_log.events import SpawnedEvent
    >>> started = Job().after(SpawnedEvent(peer=2, pid=7, time=10.0)).after(SpawnedEvent(peer=3, pid=8, time=12.0))
    >>> waiting_words(started, now=50.0)
    '2 starting for 40 s'
    """
    if job.ending is not None:
        return ""
    joiners, words = [job.peer(peer) for peer in job.joiners], list[str]()
    for state in ("starting", "ready"):
        since = [one.since for one in joiners if one.state == state]
        known = [time for time in since if time is not None]
        lasting = f" for {rough_duration(max(0.0, now - min(known)))}" if known else ""
        words += [f"{len(since)} {state}{lasting}"] if since else []
    # A replacement that was not started yet.
    if (missing := job.awaited - job.size - len(joiners)) > 0:
        words.append(f"{counted(missing, 'replacement')} to come")
    return ", ".join(words)
