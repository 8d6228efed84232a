"""Random searches on random clouds, small enough to be judged by slow means."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kungfu.tune import (
    Cloud,
    Dataset,
    Delays,
    Experiment,
    Instance,
    Latency,
    Scaling,
    Simulator,
    scaling,
    successive_halving,
)
from kungfu.tune.model import Packing

MANY = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Five hundred random instances, on a machine that may be busy."""

ROUND = st.integers(0, 30).map(float)
"""Whole seconds, so that sums are exact."""


CERTAIN = st.just(0.0)


@st.composite
def experiments(draw: st.DrawFn, *, trials: int = 16) -> Experiment:
    least = draw(st.integers(1, 4))
    most = draw(st.integers(least, 40))
    return successive_halving(draw(st.integers(1, trials)), least=least, most=most, eta=draw(st.integers(2, 4)))


@st.composite
def curves(draw: st.DrawFn, *, sigma_s: st.SearchStrategy[float] = CERTAIN) -> Scaling:
    """Curves that never get slower with GPUs."""
    seconds = [draw(st.integers(20, 400)) / 4.0]
    for _ in range(draw(st.integers(0, 3))):
        seconds.append(seconds[-1] * draw(st.sampled_from((0.5, 0.6, 0.75, 0.9, 1.0))))
    return scaling({2**power: each for power, each in enumerate(seconds)}, sigma_s=draw(sigma_s))


@st.composite
def clouds(draw: st.DrawFn, *, latency: st.SearchStrategy[Latency], packing: Packing | None = None) -> Cloud:
    return Cloud(
        Instance(
            draw(st.sampled_from((1, 2, 4, 8))), draw(st.integers(1, 50)) / 1000, draw(st.sampled_from((0.0, 60.0)))
        ),
        Delays(*(draw(latency) for _ in range(4))),
        Dataset(draw(st.integers(0, 200)), draw(st.sampled_from((0.0, 0.01, 0.16)))),
        draw(st.sampled_from(("instance", "function"))),
        packing or draw(st.sampled_from(("counted", "placed"))),
    )


def certain(*, trials: int = 16, packing: Packing | None = None) -> st.SearchStrategy[Simulator]:
    """Simulators in which nothing is random."""
    clouded = clouds(latency=ROUND.map(Latency), packing=packing)
    return st.builds(Simulator, experiments(trials=trials), curves(), clouded)


def uncertain() -> st.SearchStrategy[Simulator]:
    """Simulators in which everything is random, with four runs."""
    sigma = st.sampled_from((0.5, 3.0, 40.0))
    clouded = clouds(latency=st.builds(Latency, ROUND, sigma))
    return st.builds(
        Simulator, experiments(), curves(sigma_s=sigma), clouded, samples=st.just(4), seed=st.integers(0, 9)
    )


@st.composite
def planned(draw: st.DrawFn, *, simulators: st.SearchStrategy[Simulator]) -> tuple[Simulator, tuple[int, ...]]:
    """A simulator, and a plan for it."""
    simulator = draw(simulators)
    stages = simulator.experiment.num_stages()
    return simulator, tuple(draw(st.lists(st.integers(1, 40), min_size=stages, max_size=stages)))
