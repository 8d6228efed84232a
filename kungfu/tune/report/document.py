"""A comparison as plain data, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kungfu.tune.report.comparison import Comparison
from kungfu.tune.report.timeline import stages_held
from kungfu.tune.simulate import Estimate, Simulator

__all__ = ["as_document"]


def as_document(found: Sequence[Comparison]) -> dict[str, Any]:
    """What JSON output holds: totals, then each experiment with its plan's stages and its baselines.

    Experiments run side by side: dollars add up, the seconds are those of the last to end. A baseline that some
    experiment lacks is null.
    """
    return {
        "deadline_s": found[0].deadline_s,
        "planned": _total([each.planned for each in found]),
        "static": _total([each.static for each in found]),
        "naive": _total([each.naive for each in found]),
        "experiments": [_experiment(each) for each in found],
    }


def _total(estimates: Sequence[Estimate | None]) -> dict[str, float] | None:
    present = [each for each in estimates if each is not None]
    if len(present) < len(estimates):
        return None
    return {"seconds": max(each.seconds for each in present), "dollars": sum(each.dollars for each in present)}


def _experiment(found: Comparison) -> dict[str, Any]:
    return {
        "planned": _plan(found.simulator, estimate=found.planned),
        "static": found.static and _plan(found.simulator, estimate=found.static),
        "naive": found.naive and _plan(found.simulator, estimate=found.naive),
    }


def _plan(simulator: Simulator, *, estimate: Estimate) -> dict[str, Any]:
    stages = [asdict(held) for held in stages_held(simulator, plan=estimate.gpus)]
    return {"seconds": estimate.seconds, "dollars": estimate.dollars, "stages": stages}
