"""Derives the outcome of a job under faults from the injections and the job's record alone, and prints it."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from rich.table import Table
from rich.text import Text

from kungfu.cli.chaos.samples import SampleCheck
from kungfu.cli.report.reader import rows_in_order
from kungfu.cli.report_console import ReportConsole
from kungfu.event_log.events import (
    DismissedEvent,
    FailedEvent,
    FinishedEvent,
    LoggedEvent,
    LostEvent,
    MembershipChange,
    MissingEvent,
    PeerEndedEvent,
    RecoveredEvent,
    RequestEvent,
    RoundedEvent,
    Topic,
    of_topics,
)
from kungfu.event_log.job import Job
from kungfu.event_log.numbers import as_json
from kungfu.event_log.values import UNKNOWN, counted, duration, figure, finite_number, peers_named
from kungfu.runtime.core.request import Resize, SaveCheckpoint
from kungfu.testing.faults import Injection, SignalHosts, SignalPeers, SlowPeers

Digests = Literal["equal", "equal after rounding", "one peer"]
Rows = Sequence[Mapping[str, Any]]

_REPORTED: tuple[Topic, ...] = ("loss", "host", "recovery", "refusal", "rescale", "request", "checkpoint")
_STEPS_BEFORE, _BEFORE_S = 20, 60.0


@dataclass(frozen=True)
class FaultOutcome:
    """The outcome of one fault; ``None`` stands for an unknown value, or for an event that did not happen.

    Args:
        time: The time at which the fault was carried out, in seconds since 1970.
        noticed_s: Seconds from the last step before the fault until the job noticed the loss.
        stop_s: Seconds for which training stopped.
        whole_s: Seconds from the end of the fault until the job was whole again, including replacements of lost peers.
        held: True if the fault was carried out and the job recovered in time.
    """

    fault: str
    time: float | None
    step: int
    peers: tuple[int, ...]
    noticed_s: float | None
    stop_s: float | None
    whole_s: float | None
    result: str
    held: bool


@dataclass(frozen=True)
class ViewCheck:
    """The peers of a view that began during the injection, and the comparison of their state checksums."""

    version: int
    peers: tuple[int, ...]
    digests: Digests


@dataclass(frozen=True)
class ChaosReport:
    """The report on a job under injected faults: the outcome of each fault, and the guarantees that failed.

    Args:
        views: The views that began during the injection; all peers of a view must hold the same state.
        events: The events, in the words of ``kungfu why``.
        code: The exit code of the job; ``None`` if it has not ended.
        problems: Descriptions of the guarantees that did not hold; empty if all held.
    """

    job: str
    faults: tuple[FaultOutcome, ...]
    views: tuple[ViewCheck, ...]
    samples: SampleCheck
    events: tuple[str, ...]
    code: int | None
    problems: tuple[str, ...]

    @property
    def held(self) -> bool:
        """True if all guarantees held."""
        return not self.problems


def report_chaos(
    injections: Sequence[Injection],
    events: Sequence[LoggedEvent],
    rows: Rows,
    *,
    job: str,
    since: float,
    within_s: float,
    samples: SampleCheck,
    code: int | None,
) -> ChaosReport:
    """The report on a job under injected faults.

    Args:
        rows: The lines of the metrics, from shortly before the first fault.
        since: The time at which the injection began, in seconds since 1970.
    """
    after = [event for event in events if event.time is not None and event.time >= since]
    # Rows without a time are ignored; for a repeated step, the last row counts.
    steps = [row for _, row in rows_in_order(row for row in rows if finite_number(row.get("time")) is not None)]
    faults = tuple(_outcome(one, events, after, steps, within_s=within_s, code=code) for one in injections)
    problems = [f"{one.fault}: {one.result}" for one in faults if not one.held]
    problems += samples.problems
    problems += [one.one_line() for one in of_topics(after, "checkpoint") if one.error]
    # The job ended with an error, either its own or caused by the faults.
    if code:
        failed = [event.error for event in after if isinstance(event, FailedEvent)]
        problems.append(f"the job ended with exit code {code}{f': {failed[0]}' if failed else ''}")
    lines = tuple(line for event in of_topics(after, *_REPORTED) if (line := event.one_line()))
    return ChaosReport(job, faults, tuple(_views(after)), samples, lines, code, tuple(dict.fromkeys(problems)))


def _views(after: Sequence[LoggedEvent]) -> Iterator[ViewCheck]:
    """Yields the check of each view; a view begins only if the peers' checksums are equal, apart from rounding."""
    rounded = {event.view for event in after if isinstance(event, RoundedEvent)}
    for view in of_topics(after, "view"):
        digests: Digests = "equal after rounding" if view.version in rounded else "equal"
        yield ViewCheck(view.version, view.peers, digests if len(view.peers) > 1 else "one peer")


# ---- one fault -------------------------------------------------------------------------------------------------------


def _outcome(
    one: Injection, events: Sequence[LoggedEvent], after: Sequence[LoggedEvent], rows: Rows, *, within_s: float,
    code: int | None,
) -> FaultOutcome:  # fmt: skip
    fault = str(one.fault)
    if one.at is None:
        return FaultOutcome(fault, None, one.step, one.peers, None, None, None, f"not carried out: {one.why}", False)
    since = [event for event in after if (event.time or 0.0) >= one.at]
    change = _change(one, since)
    whole_at = _whole_at(one, events, rows)
    whole_s = None if whole_at is None else max(0.0, whole_at - one.until)
    stop_s = _paused_s(rows, one.at, whole_at or one.until) if change is None else change.stop_s
    in_time = whole_s is not None and whole_s <= within_s
    result = _result(one, one.at, change, since, rows)
    # No replacement is required once training is over.
    if not in_time and code != 0:
        late = "was not" if whole_s is None else f"was only after {duration(whole_s)}"
        result = f"{result}; {within_s:g} s after it the job {late} whole again"
    noticed_s = change.noticed_s if isinstance(change, RecoveredEvent) else None
    request = _request_state(one, since)
    held = (in_time or code == 0) and (request is None or request.state == "carried out")
    return FaultOutcome(fault, one.at, one.step, one.peers, noticed_s, stop_s, whole_s, result, held)


def _change(one: Injection, since: Sequence[LoggedEvent]) -> MembershipChange | None:
    """The membership change that a fault caused: a recovery from the loss of the fault's peers, or a rescale."""
    what, hit = one.fault.what, {*one.peers}
    asked = f"kungfu {one.fault.action}" if isinstance(what, Resize) else None
    is_notice = isinstance(what, SignalPeers | SignalHosts) and what.verb == "notice"
    for event in of_topics(since, "rescale", "recovery"):
        if event.topic == "recovery":
            is_its = bool({*map(str, hit)} & event.lost.keys())
        else:
            is_its = event.rule == asked or (is_notice and bool(hit & {*event.left}))
        if is_its:
            return cast(MembershipChange, event)
    return None


def _request_state(one: Injection, since: Sequence[LoggedEvent]) -> RequestEvent | None:
    """The newest event about the request that a fault submitted; ``None`` if there is no such event."""
    found = [event for event in of_topics(since, "request") if one.request and event.id == one.request]
    return found[-1] if found else None


def _result(
    one: Injection, at: float, change: MembershipChange | None, since: Sequence[LoggedEvent], rows: Rows
) -> str:
    """Describes the result of a fault that was carried out at the time ``at``."""
    what, request = one.fault.what, _request_state(one, since)
    if change is not None:
        return change.headline()
    if isinstance(what, SaveCheckpoint):
        return next((event.one_line() for event in of_topics(since, "checkpoint")), "no checkpoint was written")
    if isinstance(what, Resize):
        return request.one_line() if request is not None else "the job has not answered"
    if isinstance(what, SlowPeers):
        before, meanwhile = _speed(rows, at - _BEFORE_S, at), _speed(rows, at, one.until)
        return f"{figure(before)} -> {figure(meanwhile)} samples/s meanwhile"
    if one.until > at:
        return f"nobody gave {peers_named(one.peers)} up" if one.peers else "the job trained on"
    ends = (PeerEndedEvent, DismissedEvent, FinishedEvent)
    is_gone = any(isinstance(event, ends) and event.peer in one.peers for event in since)
    if is_gone or any(isinstance(event, LostEvent | MissingEvent) for event in since):
        return "no peer of the view was lost: training continued"
    return "the record shows no loss"


# ---- times -----------------------------------------------------------------------------------------------------------


def _whole_at(one: Injection, events: Sequence[LoggedEvent], rows: Rows) -> float | None:
    """The time, in seconds since 1970, when the job first completed a step with every expected peer after a fault."""
    job, earliest = Job(), max(one.at or math.inf, one.until)
    stamped: list[tuple[float, Any]] = [(event.time, event) for event in events if event.time is not None]
    for at, moment in sorted([*stamped, *((row["time"], row) for row in rows)], key=lambda moment: moment[0]):
        if isinstance(moment, LoggedEvent):
            job = job.after(moment)
            continue
        job = job.after_step(moment)
        if at > earliest and job.is_whole and _is_over(one, job):
            return float(at)
    # The last event of the view may have a later time stamp than the steps of the view.
    last = float(rows[-1]["time"]) if rows else 0.0
    return last if last > earliest and job.is_whole and _is_over(one, job) else None


def _is_over(one: Injection, job: Job) -> bool:
    """True if the job has handled a fault: killed peers are known to be gone, and requests are answered."""
    what = one.fault.what
    if one.request:
        return one.request in job.requests and job.requests[one.request].state != "accepted"
    if isinstance(what, SignalPeers | SignalHosts) and what.verb in ("kill", "notice"):
        return job.members != () and {*one.peers}.isdisjoint((*job.members, *job.joiners))
    return True


def _paused_s(rows: Rows, since: float, until: float) -> float | None:
    """The longest time between two steps in a span, minus the median step time before the span."""
    times = [float(row["time"]) for row in rows]
    gaps = [(one, later, later - one) for one, later in itertools.pairwise(times)]
    before = [gap for _, later, gap in gaps if later <= since][-_STEPS_BEFORE:]
    within = [gap for one, later, gap in gaps if later > since and one <= until]
    if not within:
        return None
    return max(0.0, max(within) - (statistics.median(before) if before else 0.0))


def _speed(rows: Rows, since: float, until: float) -> float | None:
    """The samples per second of the steps that ended within a span of time."""
    found = [row for row in rows if since < row["time"] <= until]
    if len(found) < 2:
        return None
    seconds = float(found[-1]["time"]) - float(found[0]["time"])
    samples = sum(int(row.get("batch", 0)) for row in found[1:])
    return samples / seconds if seconds > 0 else None


# ---- as text and as JSON ---------------------------------------------------------------------------------------------


def injection_line(one: Injection) -> str:
    """The line that is printed when a fault is injected."""
    if one.at is None:
        return f"{one.fault}: not carried out: {one.why}"
    hit = f" ({peers_named(one.peers)})" if one.peers else ""
    return f"{time.strftime('%H:%M:%S', time.localtime(one.at))} step {figure(one.step)}: {one.fault.action}{hit}"


def print_report(report: ChaosReport, *, form: Literal["text", "json"]) -> None:
    """Prints the outcomes of the faults, and whether the guarantees held."""
    if form == "json":
        print(json.dumps(as_json({**asdict(report), "held": report.held}, nan=None), indent=2, allow_nan=False))
        return
    console = ReportConsole(highlight=False)
    console.print(_table(report.faults))
    for line in _details(report):
        console.print(Text(line), soft_wrap=True)
    # The result comes last, because users look for the result at the end.
    for problem in report.problems:
        console.print(Text(f"did not hold: {problem}", style="bold red"), soft_wrap=True)
    if report.held:
        console.print(Text(f"everything held under {counted(len(report.faults), 'fault')}", style="bold green"))


def _table(faults: Sequence[FaultOutcome]) -> Table:
    table = Table()
    for name in ("fault", "step", "hit", "noticed", "stood still", "whole after", "what came of it"):
        numeric = name in ("step", "noticed", "stood still", "whole after")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for one in faults:
        hit = peers_named(one.peers) if one.peers else UNKNOWN
        times = (duration(one.noticed_s), duration(one.stop_s), duration(one.whole_s))
        style = "" if one.held else "bold red"
        table.add_row(Text(one.fault), figure(one.step), hit, *times, Text(one.result, style=style))
    return table


def _details(report: ChaosReport) -> list[str]:
    samples = [f"samples: {report.samples.found}", *(f"  note: {note}" for note in report.samples.notes)]
    ended = [] if report.code is None else [f"the job ended meanwhile, with exit code {report.code}"]
    events = ["what happened:", *(f"  {line}" for line in report.events)] if report.events else []
    return [_states(report.views), *samples, *ended, *events]


def _states(views: Sequence[ViewCheck]) -> str:
    """A line about the comparisons of the peers' states after changes of the membership."""
    compared = [one for one in views if one.digests != "one peer"]
    rounded = [str(one.version) for one in compared if one.digests == "equal after rounding"]
    if not views:
        return "states: the membership did not change, so nothing was compared anew"
    alone = len(views) - len(compared)
    parts = [f"equal on all peers in {counted(len(compared), 'view')}"] if compared else []
    parts += [f"{counted(alone, 'view')} of one peer, with nothing to compare"] if alone else []
    evened = f"; rounding was evened out in view {', '.join(rounded)}" if rounded else ""
    return f"states: {', '.join(parts)}{evened}"
