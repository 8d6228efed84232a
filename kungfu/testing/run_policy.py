"""``run_policy``: a policy over a recorded run, over arrays, or on a modelled cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kungfu.compiler import FiredRule, Plan, compile_policies, fired_rules
from kungfu.compiler.replay import Replay
from kungfu.control import Budget
from kungfu.policy_definition import Policy
from kungfu.record import Trace, parse_trace, read_trace, replay
from kungfu.testing.arrays import steps_of
from kungfu.testing.cluster_model import ClusterModel
from kungfu.testing.simulated_run import simulate, told

__all__ = ["run_policy"]


def run_policy(
    policy: Policy | Sequence[Policy],
    trace: ClusterModel | Mapping[str, Any] | Trace | str | Path | Sequence[str],
    *,
    budget: Budget | None = None,
) -> tuple[FiredRule, ...]:
    """What a policy, or several on one job, decide step by step, by the plan's NumPy interpreter.

    `trace` is one of three: a `ClusterModel`, on which decisions are carried out, so that the policy sees what comes of
    them; a mapping from sources to arrays, with a value a step, or for local ones a row of one value a peer; or a
    recorded run (its folder, the lines of its ``trace.jsonl``, a `kungfu.record.Trace`). What arrays and records hold
    stays as it is, whatever is decided. Of arrays, ``step``, ``size``, the limits of the size and ``pending`` may be
    left out; what a plan makes of gradients is given under its name, as in ``norm_squared(grads)``, and so is what
    the program publishes or feeds, which is local. `budget`: the job's
    budget of rescales.

    Gives the decisions in order, those in the shadow too, and on a model those of rules on a rescale, under the step
    before the barrier; there `FiredRule.unmet` says where nothing came of one. Raises `PolicyError` as `attach` does,
    `UsageError` for a source that is missing.

    >>> from kungfu.policies import schedule
    >>> model = ClusterModel(throughput_by_size={1: 100, 4: 300}, steps=20)
    >>> [(one.step, one.value, one.inputs["size"]) for one in run_policy(schedule({5: 4, 12: 1}), model)]
    [(5, 4.0, 2), (12, 1.0, 4)]
    """
    plan = compile_policies([policy] if isinstance(policy, Policy) else policy, budget=budget)
    if isinstance(trace, ClusterModel):
        return simulate(plan, trace).decisions
    if isinstance(trace, Mapping):
        return tuple(_given(plan, trace))
    return tuple(_recorded(plan, trace))


def _given(plan: Plan, arrays: Mapping[str, Any]) -> Iterator[FiredRule]:
    playing: Replay | None = None
    declared = [name for name, kind in plan.source_kinds.items() if kind.given_by != "step"]
    for local, agreed in steps_of(arrays, declared):
        if playing is None:
            playing = Replay(plan, size=len(local))
        if playing.size != len(local):
            playing.rescale(len(local))
        yield from told(fired_rules(plan, playing.step(local, agreed), step=agreed["step"]))


def _recorded(plan: Plan, source: Trace | str | Path | Sequence[str]) -> Iterator[FiredRule]:
    if isinstance(source, (str, Path)):
        trace = read_trace(Path(source))
    else:
        trace = source if isinstance(source, Trace) else parse_trace(source)
    yield from told(replay(plan, trace, whose="another").decisions)
