"""The record of a modelled job: what its steps would have written, and the events of its rescales."""

from __future__ import annotations

from typing import Any

from kungfu.compiler import CompiledPolicies, fired_rules
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_to_json
from kungfu.event_log.events import LoggedEvent
from kungfu.testing import ClusterModel
from kungfu.testing.simulated_barrier import SimulatedBarrier
from kungfu.testing.simulated_job import SimulatedJob, agreed_sources, busy_seconds, local_sources, stepped
from kungfu.trace import RecordedStep, Trace
from kungfu.trace.lines import header_line
from tests.event_log.made import made
from tests.trace.recorded import step_lines


def recorded_run(plan: CompiledPolicies, model: ClusterModel) -> tuple[Trace, list[LoggedEvent]]:
    """What a run of `plan` on a model leaves behind."""
    job = SimulatedJob.started(model)
    barrier = SimulatedBarrier(job, Replay(plan, size=job.size))
    steps, events = list[RecordedStep](), list[LoggedEvent]()
    while not job.is_over:
        busy, before, done = busy_seconds(job), job.peers, job.step
        local, agreed = local_sources(job, busy), agreed_sources(job)
        outcome = barrier.replay.step(local, agreed)
        fired = fired_rules(plan, outcome, step=job.step)
        steps.append(RecordedStep(job.step, job.view, tuple(local), agreed, {one.rule: one.value for one in fired}))
        stepped(job, busy)
        acting = [one for one in fired if one.mode == "acting"]
        barrier.hold(acting, fractions=next(iter(outcome.fractions), ()))
        if job.peers is not before:
            events.append(made(**rescale(model, before, job.peers, done)))
    return Trace(tuple(steps), plan=plan), events


def rescale(model: ClusterModel, before: list[int], after: list[int], step: int) -> dict[str, Any]:
    joined = [one for one in after if one not in before]
    parts = {"spawn_s": model.rescaling.joining_s * 0.75, "ready_s": model.rescaling.joining_s * 0.25} if joined else {}
    return {
        "event": "rescale", "step": step, "rule": "any", "from": len(before), "to": len(after), "joined": joined,
        "left": [one for one in before if one not in after], "stop_s": model.rescaling.stop_s, "parts": parts,
    }  # fmt: skip


def lines_of(trace: Trace) -> list[dict[str, Any]]:
    """The lines of the record's file."""
    assert trace.plan is not None
    lines = [header_line(plan_to_json(trace.plan), policies=(), every=100)]
    for one in trace.steps:
        lines += step_lines(one.step, one.view, one.local, one.agreed, one.fired)
    return lines
