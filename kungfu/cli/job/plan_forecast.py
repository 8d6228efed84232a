"""``kungfu resize N --plan``: the effects of a request on peers, hosts, batch, rate, pause, speed and cost."""

from __future__ import annotations

import json
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from kungfu.cli.report.reader import newest_step, read_events, rows_between
from kungfu.compiler import CompiledPolicies
from kungfu.compiler.fired import fired_on_rescale
from kungfu.control import Call, Evict, Rescale, SetLearningRate
from kungfu.errors import UsageError
from kungfu.event_log.events import LoggedEvent, RescaleEvent, of_topics
from kungfu.event_log.job import Job, fold
from kungfu.event_log.numbers import as_float, as_json
from kungfu.event_log.values import counted, duration, figure, finite_number
from kungfu.runtime.core.request import Asked
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.request_plan import PlannedPeer, RequestPlan
from kungfu.runtime.job_api.status import JobStatus, MembershipStatus
from kungfu.signal.gate import is_every_steps, period_of
from kungfu.testing.recorded_model import throughput_between, usual_times
from kungfu.trace import read_plan

# The first steps at a size are slower: caches are cold, and removed peers may still occupy processors.
_WARM_UP_STEPS = 3
_STEPS_OF_A_SIZE = 20_000  # enough to measure a speed; a job of a week has tens of millions of steps
# The column where the text of a plan's lines begins, and the narrowest terminal for which these lines are wrapped.
_COLUMN, _NARROWEST = 12, 40

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class PlanForecast:
    """The expected effects of a plan, from the measurements in the job's record; ``None`` means unknown.

    Args:
        batch: Samples of a step after the change.
        rules: The rules of the job's policies that set the batch or the learning rate.
        ready_s: Seconds that joiners take to get ready, while the other peers train.
        pause_s: Seconds for which training stops.
        cost: Peer-seconds per 1,000 samples at the new size.
        held: The hold on the size once the request is carried out, as text; empty without a hold.
        undone_by: The rules and hooks that may change the size again, each with the steps in which it may: only with
            their period if the first of them is unknown.
        notes: Remarks on guesses and unknown values.
    """

    batch: int | None
    learning_rate_before: float | None
    learning_rate: float | None
    rules: tuple[str, ...]
    ready_s: float | None
    pause_s: float | None
    samples_per_s_before: float | None
    samples_per_s: float | None
    cost_before: float | None
    cost: float | None
    held: str
    undone_by: tuple[str, ...]
    notes: tuple[str, ...]


def print_plan(folder: Path, request: Asked, *, form: Literal["text", "json"]) -> int:
    """Prints the effects of a request without submitting it; returns 0, or 1 if the job would refuse the request."""
    with connected(folder) as job:
        plan, status = job.plan(request), job.status()
    forecast = forecast_plan(folder, plan, status, measured=read_measured(folder))
    if form == "json":
        document = {**asdict(plan), "forecast": asdict(forecast)}
        print(json.dumps(as_json(document, nan=None), indent=2, allow_nan=False))
    else:
        console = Console(highlight=False)
        for line in plan_lines(plan, forecast):
            # On a terminal, a line is wrapped with its text in one column.
            if console.is_terminal:
                line = textwrap.fill(line, max(_NARROWEST, console.width), subsequent_indent=_COLUMN * " ")
            console.print(Text(line), soft_wrap=True)
    return 1 if plan.refusal else 0


# ---- the forecast ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredRun:
    """The measurements of a job so far: samples per second at each size, and the newest learning rate if known."""

    job: Job
    speeds: Mapping[int, float]
    learning_rate: float | None
    notes: tuple[str, ...] = ()


def forecast_plan(folder: Path, plan: RequestPlan, status: JobStatus, *, measured: MeasuredRun) -> PlanForecast:
    """Forecasts the effects of a plan, from measurements and the rules of policies in ``folder``."""
    notes, speeds, rate = [*measured.notes], measured.speeds, measured.learning_rate
    before, after = (_speed(speeds, size, notes if size == plan.after else []) for size in (plan.before, plan.after))
    compiled = _compiled(folder, plan, notes)
    batch, rate_after, rules = _settings(compiled, plan, status, measured)
    pause_s, ready_s = _pause_and_ready_s(measured.job.rescales, plan, notes)
    cost_before, cost = before and 1000 * plan.before / before, after and 1000 * plan.after / after
    held = _hold_after(plan, status.membership, notes)
    undone_by = _undone_by(compiled, None if held else status.figures.step or 0)
    return PlanForecast(
        batch, rate, rate_after, rules, ready_s, pause_s, before, after, cost_before, cost, held, undone_by,
        tuple(notes),
    )  # fmt: skip


def read_measured(folder: Path) -> MeasuredRun:
    """Reads the measurements from the record in ``folder``; on failure, the result has only a note with the reason."""
    try:
        events = read_events(folder).events
        spans = _spans_by_size(events, newest_step(folder))
        rows = [row for first, last in spans for row in rows_between(folder, first, last)]
    except UsageError as error:
        return MeasuredRun(Job(), {}, None, (f"nothing is expected from what was measured: {error}",))
    return MeasuredRun(fold(events), SpeedsBySize(rows).measured(), _newest(rows, "learning_rate"))


def _spans_by_size(events: Iterable[LoggedEvent], newest: float) -> list[tuple[float, float]]:
    """The first and last steps of the spans to read, which contain the newest steps at each size."""
    changes = sorted(of_topics(events, "rescale", "recovery"), key=lambda one: one.step)
    sizes = [changes[0].before if changes else 0, *(one.after for one in changes)]
    ends = [*(float(one.step) for one in changes), newest]
    spans, wanted = list[tuple[float, float]](), dict.fromkeys(sizes, _STEPS_OF_A_SIZE)
    for size, before, last in reversed([*zip(sizes, [0.0, *ends], ends, strict=False)]):
        first = max(before + 1, last - wanted[size] + 1)
        if first > last:
            continue
        wanted[size] -= int(last - first) + 1
        # The span ends where the next span begins: both are read as one span.
        end = spans.pop()[1] if spans and spans[-1][0] == last + 1 else last
        spans.append((first, end))
    return spans[::-1]


class SpeedsBySize:
    """Sums samples and seconds of the steps at each size, without the first steps after each change of the size."""

    def __init__(self, rows: Rows = ()) -> None:
        self._samples, self._seconds = defaultdict[int, float](float), defaultdict[int, float](float)
        self._size: object = None
        self._since = 0
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds the next step of the run to the sums for the step's size."""
        size, batch, speed = row.get("size"), finite_number(row.get("batch")), finite_number(row.get("samples_per_s"))
        self._since, self._size = (0 if size != self._size else self._since + 1), size
        if isinstance(size, int) and batch and speed and speed > 0 and self._since >= _WARM_UP_STEPS:
            self._samples[size] += batch
            self._seconds[size] += batch / speed

    def measured(self) -> dict[int, float]:
        """Samples per second by size."""
        return {size: self._samples[size] / self._seconds[size] for size in sorted(self._samples) if size > 0}


def _speed(speeds: Mapping[int, float], size: int, notes: list[str]) -> float | None:
    """The throughput with ``size`` peers; appends a note if the throughput is guessed or unknown."""
    seen = sorted(speeds)
    if not seen or size < 1:
        notes.append("no step was timed long enough, so throughput is not known")
        return None
    speed = throughput_between(speeds, size)
    peers = counted(size, "peer")
    if math.isnan(speed):
        notes.append(f"{peers} were never seen, nor any size but {seen[0]}: `kungfu profile` measures sizes")
        return None
    if size not in speeds:
        is_between = seen[0] < size < seen[-1]
        how = "on a line between the sizes beside them" if is_between else f"from {seen[0]} to {seen[-1]}"
        notes.append(f"{peers} were never seen: their throughput is a guess {how}; `kungfu profile` measures it")
    return speed


def _pause_and_ready_s(
    rescales: Iterable[RescaleEvent], plan: RequestPlan, notes: list[str]
) -> tuple[float | None, float | None]:
    if not plan.joins and not plan.leaves:
        return 0.0, 0.0
    pause_s, ready_s = usual_times(rescales)
    if pause_s is None:
        notes.append("no rescale of this job was measured, so the pause is not known")
    if plan.joins and ready_s is None:
        notes.append("nobody has joined this job yet, so how long a joiner takes is not known")
    return pause_s, ready_s if plan.joins else 0.0


def _compiled(folder: Path, plan: RequestPlan, notes: list[str]) -> CompiledPolicies | None:
    """The policies of the job; ``None`` if unknown, with a note if the size changes."""
    unknown, compiled = "whether a rule sets batch, learning rate or size is not known", None
    note = f"the record holds no plan, so {unknown}"
    try:
        compiled = read_plan(folder)
    except UsageError as error:
        note = f"{unknown}: {error}"
    if compiled is None and plan.after != plan.before and plan.batch_after is not None:
        notes.append(note)
    return compiled


def _undone_by(compiled: CompiledPolicies | None, step: int | None) -> tuple[str, ...]:
    """The rules and hooks that may change the size, each with the steps after ``step`` in which it may.

    ``step`` is ``None`` if a hold comes before them: nobody knows the step in which a hold ends."""
    found = []
    for rule in compiled.rules if compiled is not None else ():
        if rule.mode == "acting" and isinstance(rule.action, (Rescale, Evict, Call)):
            period = period_of(rule.gate)
            when = " after any step" if period == 1 else f", every {figure(period)} steps"
            if step is not None and is_every_steps(rule.gate):
                # A further condition, or another remainder, would leave the first step unknown.
                when = f" at step {figure((step // period + 1) * period)}, and every {figure(period)} steps"
            found.append(f"{rule.name} may change the size again{when}")
    return tuple(found)


def _hold_after(plan: RequestPlan, now: MembershipStatus, notes: list[str]) -> str:
    """The hold on the size once a request is carried out, as text; empty without a hold."""
    if plan.held_at is None:
        if now.held_at is not None:
            notes.append(f"the hold at {figure(now.held_at)} ends with this request")
        return ""
    lasting = "until it is released" if plan.held_for_s is None else f"for {duration(plan.held_for_s)}"
    return f"at {figure(plan.held_at)} {lasting}; lost peers are still replaced"


def _settings(
    compiled: CompiledPolicies | None, plan: RequestPlan, status: JobStatus, measured: MeasuredRun
) -> tuple[int | None, float | None, tuple[str, ...]]:
    """The batch and the learning rate after a change of the size, and the rules that choose them."""
    batch, rate = plan.batch_after, measured.learning_rate
    if compiled is None or plan.after == plan.before or plan.batch_before is None or batch is None:
        return batch, rate, ()
    limits, step = status.membership, status.figures.step or 0
    base_batch, base_size = measured.job.base or (plan.batch_before, plan.before)
    sources = {
        "size": plan.after, "previous_size": plan.before, "step": step, "epoch_samples": 0,
        "global_batch_size": batch, "previous_global_batch_size": plan.batch_before,
        "base_size": base_size, "base_global_batch_size": base_batch,
        "learning_rate": math.nan if rate is None else rate, "min_size": limits.minimum, "max_size": limits.maximum,
    }  # fmt: skip
    chosen = fired_on_rescale(compiled, sources, step=step)
    for one in chosen:
        if isinstance(one.action, SetLearningRate):
            rate = one.value
        else:
            batch = round(one.value)
    return batch, rate, tuple(dict.fromkeys(one.rule for one in chosen))


def _newest(rows: Rows, name: str) -> float | None:
    found = (as_float(row.get(name)) for row in reversed(rows))
    return next((value for value in found if value is not None and math.isfinite(value)), None)


# ---- as text ---------------------------------------------------------------------------------------------------------


def plan_lines(plan: RequestPlan, expected: PlanForecast) -> Iterator[str]:
    """A plan and its expected effects, as lines of text."""
    sizes = f"{f'{plan.before} -> ' if plan.after != plan.before else ''}{counted(plan.after, 'peer')}"
    if plan.refusal:
        yield f"{plan.words} would be refused: {plan.refusal}"
    else:
        yield f"{plan.words} would take view {plan.view} from {sizes}; nothing was changed"
        yield from _details(plan, expected)
    for one in plan.refused_sizes:
        last = " and more" if one.last is None else f" to {one.last}" if one.last != one.first else ""
        yield f"  refused   {one.first}{last}: {one.reason.removeprefix(f'a size of {one.first}: ')}"
    for note in expected.notes if not plan.refusal else ():
        yield f"  note: {note}"


def _details(plan: RequestPlan, expected: PlanForecast) -> Iterator[str]:
    missing = f"; {plan.missing} more: no host has a free slot" if plan.missing else ""
    yield f"  starts    {_named(plan.joins)}{missing}"
    yield f"  leaves    {_named(plan.leaves)}"
    rules = f", as {' and '.join(expected.rules)} sets it" if expected.rules else ""
    per_peer = "" if expected.batch is None else f", {figure(expected.batch / plan.after)} per peer"
    yield f"  batch     {_change(plan.batch_before, expected.batch)} samples{per_peer}"
    yield f"  rate      {_change(expected.learning_rate_before, expected.learning_rate)}{rules}"
    beside = f"{duration(expected.ready_s)} to get ready while the others train, then " if plan.joins else ""
    yield f"  pause     {beside}{duration(expected.pause_s)} in which training stands still"
    yield f"  speed     {_change(expected.samples_per_s_before, expected.samples_per_s)} samples/s"
    yield f"  cost      {_change(expected.cost_before, expected.cost)} peer-seconds per 1,000 samples"
    if expected.held:
        yield f"  held      {expected.held}"
    for one in expected.undone_by:
        yield f"  undone    {'after the hold, ' if expected.held else ''}{one}"


def _named(peers: Sequence[PlannedPeer]) -> str:
    return ", ".join(f"peer {one.id} on {one.host}" for one in peers) or "nobody"


def _change(before: float | None, after: float | None) -> str:
    """A number before and after the planned change, with the relative difference, as text."""
    if before == after or before is None:
        return figure(after)
    share = f" ({(after - before) / before:+.0%})" if after is not None and before else ""
    return f"{figure(before)} -> {figure(after)}{share}"
