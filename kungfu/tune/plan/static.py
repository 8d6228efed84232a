"""The baseline with one cluster size from start to end, and the fastest plan there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kungfu.errors import UsageError
from kungfu.tune.plan.search import Search, cheaper, meets, most_gpus
from kungfu.tune.simulate import Estimate, Simulator, estimate
from kungfu.tune.simulate.parts import training

__all__ = ["best_static", "fastest", "static_sizes"]

_MOST_SIZES = 200_000


def best_static(simulator: Simulator, *, deadline_s: float, search: Search) -> Estimate | None:
    """The cheapest plan with the same number of GPUs in every stage that meets the deadline; ties: the faster.

    Gives: None when no size up to the limit does.
    """
    met = [found for found in _statics(simulator, search=search) if meets(found, deadline_s=deadline_s)]
    return min(met, key=cheaper, default=None)


def fastest(simulator: Simulator, *, search: Search) -> Estimate:
    """The fastest plan: each stage at its fastest size, or the fastest static plan where growing costs more time.

    While an iteration never gets slower with GPUs, nothing can be faster, apart from chance in the set-ups.
    """
    sizes = static_sizes(simulator, search=search)
    stages = range(simulator.experiment.num_stages())
    eager = tuple(_fastest_size(simulator, stage=stage, sizes=sizes) for stage in stages)
    return min([estimate(simulator, plan=eager), *_statics(simulator, search=search)], key=lambda found: found.seconds)


def static_sizes(simulator: Simulator, *, search: Search) -> list[int]:
    """The sizes worth judging: all at which some stage's share changes.

    Any other size runs exactly like the next smaller one of these, with GPUs that idle, so it cannot be cheaper: the
    list stands for all sizes from 1 to the limit. Raises: UsageError when there are more than 200,000.
    """
    limit, widest = most_gpus(simulator, search=search), simulator.scaling.widest
    trials = {stage.trials for stage in simulator.experiment.stages}
    # Where trials are placed on instances, GPUs that a trial cannot use decide too how many instances a stage holds,
    # and so whether the next one has to wait for others.
    useful = widest if simulator.cloud.packing == "counted" else limit
    shares = [range(1, min(limit, max(trials)) + 1), *(range(n, min(limit, n * useful) + 1, n) for n in trials)]
    count = sum(map(len, shares))
    if count > _MOST_SIZES:
        raise UsageError(
            f"up to {limit:,} GPUs there are {count:,} cluster sizes to judge, more than {_MOST_SIZES:,}: give a"
            " smaller max_gpus, fewer trials, or a scaling curve that ends earlier"
        )
    return sorted({size for share in shares for size in share})


def _statics(simulator: Simulator, *, search: Search) -> Iterator[Estimate]:
    stages = simulator.experiment.num_stages()
    return (estimate(simulator, plan=(size,) * stages) for size in static_sizes(simulator, search=search))


def _fastest_size(simulator: Simulator, *, stage: int, sizes: Iterable[int]) -> int:
    return min(sizes, key=lambda size: float(training(simulator, stage=stage, gpus=size).seconds.mean()))
