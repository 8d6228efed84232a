"""Estimates the cost and savings of another policy on a recorded job, by a model of the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from kungfu.compiler import CompiledPolicies, FiredRule
from kungfu.errors import UsageError
from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.values import counted, duration, figure, sizes_passed
from kungfu.testing.recorded_model import RecordedJob, guesses_of, measure_job, model_of_job
from kungfu.testing.simulated_run import SimulatedRun, simulate
from kungfu.trace import Trace


@dataclass(frozen=True)
class Forecast:
    """A recorded job, and the same job as simulated under another policy.

    Attributes:
        job: The job according to the record.
        run: The simulated job under the other policy; ``None`` if this job cannot be estimated.
        unknown: The reason why ``run`` cannot be estimated.
        guesses: Descriptions of the values that the model had to guess.
    """

    job: RecordedJob
    run: SimulatedRun | None
    unknown: str = ""
    guesses: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The estimated seconds of the whole job, including the pauses that do not depend on the policy."""
        return self.run.seconds + self.job.other_s if self.run else 0.0

    @property
    def peer_seconds(self) -> float:
        """The estimated seconds of all peers; pauses that the policy does not affect count at the average size."""
        if self.run is None or not self.run.seconds:
            return 0.0
        return self.run.peer_seconds * (1 + self.job.other_s / self.run.seconds)


def forecast(plan: CompiledPolicies, trace: Trace, events: Iterable[LoggedEvent]) -> Forecast:
    """Simulates a model of the recorded job under the policies of `plan`, for as many samples as the job trained on."""
    job = measure_job(trace, events)
    try:
        model = model_of_job(job, trace, plan)
    except UsageError as error:
        return Forecast(job, None, str(error))
    batches = set[int]()
    run = simulate(plan, model, seen=lambda at: batches.add(at.samples))
    guesses = guesses_of(job, trace, [model.start.size, *(one.size for one in run.changes)], batches)
    if "job_samples" in plan.source_kinds:
        guesses = (*guesses, *_samples_guessed(trace, job))
    if run.samples < job.samples:
        guesses = (*guesses, _unfinished(run, job, most_steps=model.steps))
    return Forecast(job, run, "", guesses)


def _samples_guessed(trace: Trace, job: RecordedJob) -> Iterator[str]:
    """A remark if the policy reads the job's planned number of samples, but the model uses the recorded number."""
    first = trace.steps[0].agreed
    planned, left = first.get("job_samples"), job.samples + int(first.get("samples_done", 0))
    of_the_model = f"on the model it has those of the record, {job.samples:,}"
    if planned == 0:
        yield f"the job did not know how many samples it has: {of_the_model}; give them to a policy that asks for them"
    elif planned is not None and abs(planned - left) > int(first.get("global_batch_size", 0)):
        yield f"the job was to train on {planned:,} samples and came to {left:,}: {of_the_model}"


def _unfinished(run: SimulatedRun, job: RecordedJob, *, most_steps: int) -> str:
    done = f"after {run.samples:,} of {job.samples:,} samples"
    if run.steps < most_steps:
        return f"the policy ends the job early, {done}"
    return f"the model was run for {most_steps:,} steps and no further, {done}: the job would take and cost more"


def forecast_as_json(estimate: Forecast) -> dict[str, Any]:
    """An object with the recorded job, the estimated job, and the guesses."""
    job, run = estimate.job, estimate.run
    document: dict[str, Any] = {
        "was": _totals(job.seconds, job.peer_seconds, job.samples, job.changes),
        "would_be": None,
        "measured": [*map(asdict, job.sizes.values())],
        "unknown": estimate.unknown,
    }
    if run is None:
        return document
    sizes = [(1, job.changes[0][1]), *((one.step + 1, one.size) for one in run.changes)]
    document["would_be"] = would_be = _totals(estimate.seconds, estimate.peer_seconds, run.samples, sizes)
    document["difference"] = {name: would_be[name] - document["was"][name] for name in ("seconds", "peer_seconds")}
    document["decisions"] = [
        {"step": one.step, "rule": one.rule, "value": one.value if one.value == one.value else None, "unmet": one.unmet}
        for one in run.decisions
    ]
    document["guesses"] = list(estimate.guesses)
    return document


def _totals(seconds: float, peer_seconds: float, samples: int, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    listed = [{"step": step, "size": size} for step, size in sizes]
    return {"seconds": seconds, "peer_seconds": peer_seconds, "samples": samples, "sizes": listed}


def forecast_as_text(estimate: Forecast) -> Iterator[Text | Table]:
    """A table of the recorded job and the estimate, followed by measurements and guesses."""
    if estimate.run is None:
        yield Text(f"what this policy would have cost cannot be estimated: {estimate.unknown}", style="yellow")
        return
    yield Text("\nthe same samples under this policy, on a model of the job", style="bold")
    yield _table(estimate, estimate.run)
    for line in _changes(estimate.run):
        yield Text(line)
    seen = ", ".join(
        f"{figure(one.samples_per_s)} samples / s with {counted(one.size, 'peer')} (± {one.spread:.0%})"
        for one in estimate.job.sizes.values()
    )
    joining = estimate.job.rescaling
    yield Text(f"measured: {seen}; a joiner takes {duration(joining.joining_s)}, a rescale stops all for "
               f"{duration(joining.stop_s)}")  # fmt: skip
    for one in estimate.guesses:
        yield Text(f"guessed: {one}", style="yellow")


def _table(estimate: Forecast, run: SimulatedRun) -> Table:
    job, headings = estimate.job, ("was", "would have been", "difference")
    table = Table("", *(Column(heading, justify="right") for heading in headings))
    rows = (("time", job.seconds, estimate.seconds), ("peer-seconds", job.peer_seconds, estimate.peer_seconds))
    for name, was, would in rows:
        show = duration if name == "time" else figure
        share = f" ({(would - was) / was:+.0%})" if was else ""
        table.add_row(name, show(was), show(would), f"{'-' if would < was else '+'}{show(abs(would - was))}{share}")
    before, after = [size for _, size in job.changes], [job.changes[0][1], *(one.size for one in run.changes)]
    table.add_row("sizes", sizes_passed(before), sizes_passed(after), "")
    return table


def _changes(run: SimulatedRun) -> Iterator[str]:
    """Yields a line per rule: the number of its decisions, and the values and steps of the first few decisions."""
    by_rule: dict[str, list[FiredRule]] = {}
    for one in run.decisions:
        by_rule.setdefault(one.rule, []).append(one)
    for rule, fired in by_rule.items():
        first = ", ".join(f"{figure(one.value)} after step {one.step:,}" for one in fired[:6] if one.value == one.value)
        more = f" and {len(fired) - 6:,} more" if len(fired) > 6 else ""
        yield f"{rule} decides {counted(len(fired), 'time')}" + (f": {first}{more}" if first else "")
