"""``run_policy``: runs a policy over a recorded run, over arrays, or on a modelled cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kungfu.compiler import CompiledPolicies, FiredRule, compile_policies, fired_rules
from kungfu.compiler.replay import Replay
from kungfu.control import Budget
from kungfu.control.synchronisation import Synchronisation
from kungfu.errors import UsageError
from kungfu.policy_definition import Policy
from kungfu.signal import SOURCES
from kungfu.testing.cluster_model import ClusterModel
from kungfu.testing.simulated_run import simulate, without_held
from kungfu.trace import Trace, parse_trace, read_trace, replay

ArrayStep = tuple[list[dict[str, Any]], dict[str, Any]]  # local sources in rank order, and agreed sources


def run_policy(
    policy: Policy | Sequence[Policy],
    trace: ClusterModel | Mapping[str, Any] | Trace | str | Path | Sequence[str],
    *,
    budget: Budget | None = None,
    sync: Synchronisation = "gradients",
) -> tuple[FiredRule, ...]:
    """Runs one policy, or several on one job, step by step, and returns the decisions.

    `trace` is one of the following:

    - a `ClusterModel`, which carries out the decisions, so that the policy sees their effects;
    - a recorded run: its folder, the lines of its ``trace.jsonl``, or a `kungfu.trace.Trace`;
    - a mapping from the names of sources to arrays with one value per step; for local sources, with one row per step
      and one value per peer. ``step``, ``size``, the limits of the size and ``pending`` may be omitted. Gradient
      reductions have names like ``norm_squared(grads)``. Values that the program publishes or feeds are local.

    The decisions have no effect on recorded runs and arrays. `budget` is the job's budget of rescales. `sync` is that
    of ``kungfu.attach``; with averages of models, arrays have one value for each step that averages.

    The decisions are in order, and include the decisions of shadow rules. On a model they also include the decisions of
    on-rescale rules, under the step before the barrier, and `FiredRule.unmet` states why a decision had no effect.
    Raises `PolicyError` as `attach` does, and `UsageError` for a missing source.

    Examples:
        >>> from kungfu.policies import schedule
        >>> model = ClusterModel(throughput_by_size={1: 100, 4: 300}, steps=20)
        >>> [(one.step, one.value, one.inputs["size"]) for one in run_policy(schedule({5: 4, 12: 1}), model)]
        [(5, 4.0, 2), (12, 1.0, 4)]
    """
    plan = compile_policies([policy] if isinstance(policy, Policy) else policy, budget=budget, sync=sync)
    if isinstance(trace, ClusterModel):
        return simulate(plan, trace, sync=sync).decisions
    if isinstance(trace, Mapping):
        return tuple(_given(plan, trace))
    if isinstance(trace, (str, Path)):
        trace = read_trace(Path(trace))
    recorded = trace if isinstance(trace, Trace) else parse_trace(trace)
    return tuple(without_held(replay(plan, recorded, whose="another").decisions))


def _given(plan: CompiledPolicies, arrays: Mapping[str, Any]) -> Iterator[FiredRule]:
    playing: Replay | None = None
    declared = [name for name, kind in plan.source_kinds.items() if kind.given_by in ("publish", "feed")]
    for local, agreed in _steps_of(arrays, declared):
        if playing is None:
            playing = Replay(plan, size=len(local))
        if playing.size != len(local):
            playing.rescale(len(local))
        yield from without_held(fired_rules(plan, playing.step(local, agreed), step=agreed["step"]))


def _steps_of(arrays: Mapping[str, Any], declared: Collection[str] = ()) -> Iterator[ArrayStep]:
    """Yields the sources of each step: the local ones by rank, and the agreed ones, which are equal on all peers.

    Agreed sources are sequences with one value per step. Local sources have, for each step, one value per peer or one
    value for all peers; the names in `declared`, which policies declare, are local. Defaults of missing sources: steps
    are counted from 1; nothing is pending or was refused; a step has as many peers as its longest local source has
    values; the maximum size is the largest of all sizes; the samples per epoch are unknown.

    Raises:
        UsageError: The lengths of the sequences do not match.
    """
    steps, own = _steps(arrays), {name for name in arrays if _is_local(name, declared)}
    sizes = [_size(arrays, index, own) for index in range(steps)]
    for index, size in enumerate(sizes):
        unbounded = {"min_size": 1, "max_size": max(sizes), "refused_size": 0, "epoch_samples": 0, "job_samples": 0}
        done = list(arrays.get("step", range(1, steps + 1)))
        since = done[index] - (done[index - 1] if index else 0)
        known = {"step": index + 1, "size": size, "steps_since_average": since, **unbounded}
        given = {name: values[index] for name, values in arrays.items() if name not in own}
        local = [{"rank": rank, **_own(arrays, index, own, rank=rank)} for rank in range(size)]
        yield local, {**known, "pending": False, **given}


def _steps(arrays: Mapping[str, Any]) -> int:
    lengths = {name: len(values) for name, values in arrays.items() if isinstance(values, list) or np.ndim(values)}
    if not lengths or len(lengths) < len(arrays) or len(set(lengths.values())) > 1:
        raise UsageError(f"arrays of a trace have one length, that of the steps; these have {lengths or 'none'}")
    return next(iter(lengths.values()))


def _size(arrays: Mapping[str, Any], index: int, own: set[str]) -> int:
    """The number of peers of a step: as given by ``size``, else the length of the longest local source in this step."""
    if "size" in arrays:
        return int(arrays["size"][index])
    rows = [len(values[index]) for name, values in arrays.items() if name in own and _is_row(values[index])]
    return max(rows, default=1)


def _own(arrays: Mapping[str, Any], index: int, own: set[str], *, rank: int) -> dict[str, Any]:
    found = {}
    for name in own:
        row = arrays[name][index]
        if _is_row(row) and rank >= len(row):
            raise UsageError(f"{name!r} has {len(row)} values in entry {index}, and that step has more peers")
        found[name] = row[rank] if _is_row(row) else row
    return found


def _is_local(name: str, declared: Collection[str]) -> bool:
    """True for a local source, or a reduction of a local source, such as ``norm_squared(grads)``."""
    if name in SOURCES:
        return SOURCES[name].placement == "local"
    if name in declared:
        return True
    inside = name.partition("(")[2].rstrip(")").split(", ")
    if not inside or any(one not in SOURCES for one in inside):
        others = f", and the policy declares {', '.join(declared)}" if declared else ""
        raise UsageError(f"{name!r} is no source; a step offers {', '.join(sorted(SOURCES))}{others}")
    return any(SOURCES[one].placement == "local" for one in inside)


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or np.ndim(value) > 0
