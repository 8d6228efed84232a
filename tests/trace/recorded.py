"""The trace of an invented run: lines as its peers would write them, with what its own plan decided."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kungfu.compiler import CompiledPolicies
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_to_json
from kungfu.trace.lines import header_line, json_literal, snapshot_line, step_format

# Sizes of the views of a run, by the first step of each: (step, the peers in rank order).
Views = Sequence[tuple[int, Sequence[int]]]
GROWN: Views = ((1, (0, 1)), (7, (0, 1, 2)), (13, (0, 2)))


def recorded(plan: CompiledPolicies, *, steps: int = 18, views: Views = GROWN, every: int = 5) -> list[dict[str, Any]]:
    """The lines of a run of so many steps, whose norms are made up so that its noise scale is about 25 samples."""
    rng, lines = np.random.default_rng(4), [header_line(plan_to_json(plan), policies=(), every=every)]
    replay, peers, version = Replay(plan, size=len(views[0][1])), tuple(views[0][1]), 1
    lines += snapshots(replay, peers, after=0, view=1)
    for step in range(1, steps + 1):
        for first, entering in views[1:]:
            if first == step:
                replay.rescale(len(entering), stayed=[peers.index(one) for one in entering if one in peers])
                peers, version = tuple(entering), version + 1
                lines += snapshots(replay, peers, after=step - 1, view=version)
        local, agreed = offered(rng, step=step, size=len(peers))
        outcome = replay.step(local, {**agreed, "step": step})
        fired = {
            rule.name: float(target)
            for rule, fires, target in zip(plan.rules, outcome.fired, outcome.targets, strict=True)
            if fires
        }
        lines += step_lines(step, version, local, agreed, fired)
        if step % every == 0:
            lines += snapshots(replay, peers, after=step, view=version)
    return lines


def offered(rng: np.random.Generator, *, step: int, size: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a step offers; its gradients are known by their norms only."""
    local = [
        {
            "loss": 1.0 / step,
            "samples": 8.0,
            "micro_batches": 1,
            "micro_batch_variance": np.nan,
            "busy_seconds": 0.01 * (rank + 1),
            "step_seconds": np.nan if step < 3 else 0.02,
            "clock_seconds": 0.02 * step,
            "rescale_seconds": np.nan,
            "host_joiners": 0,
            "norm_squared(grads)": 4.0 + rng.random(),
        }
        for rank in range(size)
    ]
    agreed = {
        "size": size,
        **dict.fromkeys(("pending", "barrier_due", "change_due", "replacing", "replacement_refused"), False),
        **dict.fromkeys(("target_size", "refused_size", "replaced_peers", "epoch_samples", "epoch", "job_samples"), 0),
        "min_size": 1,
        "max_size": 8,
        "global_batch_size": 8 * size,
        "local_batch_size": 8.0,
        "learning_rate": 0.1,
        "samples_done": 16 * (step - 1),
        "mean_loss": 1.0 / step,
        "total_samples": 8.0 * size,
        "norm_squared(mean_grads)": 1.0 + 3.0 / size,
    }
    return local, agreed


def step_lines(
    step: int, view: int, local: Sequence[Mapping[str, Any]], agreed: Mapping[str, Any], fired: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The lines of a step, one for each rank."""
    lines = []
    for rank, own in enumerate(local):
        position = {"step": step, "view": view, "rank": rank}
        parts = [{name: json_literal(one) for name, one in fields.items() if fields is position or name not in position}
                 for fields in (position, own, agreed, fired)]  # fmt: skip
        line = step_format(parts[0], local=parts[1], agreed=None if rank else parts[2], fired={} if rank else parts[3])
        lines.append(json.loads(line % ()))
    return lines


def snapshots(replay: Replay, peers: Sequence[int], *, after: int, view: int) -> list[dict[str, Any]]:
    """What each peer's folds hold; what is agreed by rank 0 alone."""
    lines = []
    for rank, peer in enumerate(peers):
        folds = {
            name: field[rank].tolist()
            for fold, names in replay.plan.state_names.items()
            for name, field in zip(names, replay.states[fold], strict=True)
            if rank == 0 or fold.placement == "local"
        }
        lines.append(snapshot_line({"after": after, "view": view, "rank": rank, "peer": peer}, folds=folds))
    return lines


def texts(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines as they stand in a file."""
    return [json.dumps(one, allow_nan=False) + "\n" for one in lines]


def written(folder: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    """A run's folder with this trace."""
    (folder / "trace.jsonl").write_text("".join(texts(lines)))
    return folder
