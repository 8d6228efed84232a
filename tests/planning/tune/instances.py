"""Random searches on random clouds, small enough to be judged by slow means."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from kungfu_planning.tune import (
    Cloud,
    Dataset,
    Delays,
    Experiment,
    Instance,
    Latency,
    ScalingCurve,
    Simulator,
    scaling,
    successive_halving,
)
from kungfu_planning.tune.cloud import Packing

CERTAIN = st.just(0.0)
SPREADS = (0.5, 3.0, 40.0)


def digits_of(code: int, *, bases: tuple[int, ...]) -> list[int]:
    """A number in a mixed base, lowest digit first: drawing one is much quicker than drawing each digit."""
    digits = []
    for base in bases:
        code, digit = divmod(code, base)
        digits.append(digit)
    return digits


def _coded(*bases: int) -> st.SearchStrategy[list[int]]:
    """A list of independent digits, the i-th from 0 to below ``bases[i]``."""
    return st.integers(0, prod(bases) - 1).map(lambda code: digits_of(code, bases=bases))


def experiments(*, trials: int = 16) -> st.SearchStrategy[Experiment]:
    def build(digits: list[int]) -> Experiment:
        count, least, more, eta = digits
        return successive_halving(count + 1, least=least + 1, most=least + 1 + more, eta=eta + 2)

    return _coded(trials, 4, 37, 3).map(build)


def curves(*, sigma_s: st.SearchStrategy[float] = CERTAIN) -> st.SearchStrategy[ScalingCurve]:
    """Curves that never get slower with GPUs."""

    def build(digits: list[int], sigma_s: float) -> ScalingCurve:
        quarters, count, *steps = digits
        seconds = [(quarters + 20) / 4.0]
        for step in steps[:count]:
            seconds.append(seconds[-1] * (0.5, 0.6, 0.75, 0.9, 1.0)[step])
        return scaling({2**power: each for power, each in enumerate(seconds)}, sigma_s=sigma_s)

    return st.builds(build, _coded(381, 4, 5, 5, 5), sigma_s)


def clouds(*, delays: st.SearchStrategy[Delays], packing: Packing | None = None) -> st.SearchStrategy[Cloud]:
    def build(digits: list[int], delays: Delays) -> Cloud:
        gpus, price, minimum, billing, packed, size, data_price = digits
        return Cloud(
            Instance((1, 2, 4, 8)[gpus], (price + 1) / 1000, (0.0, 60.0)[minimum]),
            delays,
            Dataset(size, (0.0, 0.01, 0.16)[data_price]),
            ("instance", "function")[billing],
            packing or ("counted", "placed")[packed],
        )

    return st.builds(build, _coded(4, 50, 2, 2, 2, 201, 3), delays)


def certain(*, trials: int = 16, packing: Packing | None = None) -> st.SearchStrategy[Simulator]:
    """Simulators in which nothing is random; delays are whole seconds, so that sums are exact."""
    delays = _coded(31, 31, 31, 31).map(lambda seconds: Delays(*(Latency(float(each)) for each in seconds)))
    return st.builds(Simulator, experiments(trials=trials), curves(), clouds(delays=delays, packing=packing))


def uncertain() -> st.SearchStrategy[Simulator]:
    """Simulators in which everything is random, with four runs."""

    def build(seconds: list[int], spreads: list[int]) -> Delays:
        return Delays(*(Latency(float(mean), SPREADS[spread]) for mean, spread in zip(seconds, spreads, strict=True)))

    delays = st.builds(build, _coded(31, 31, 31, 31), _coded(3, 3, 3, 3))
    noisy = curves(sigma_s=st.sampled_from(SPREADS))
    return st.builds(Simulator, experiments(), noisy, clouds(delays=delays), samples=st.just(4), seed=st.integers(0, 9))


def planned(*, simulators: st.SearchStrategy[Simulator]) -> st.SearchStrategy[tuple[Simulator, tuple[int, ...]]]:
    """A simulator, and a plan for it of up to 40 GPUs; no experiment here has more than six stages."""

    def build(simulator: Simulator, first: list[int], second: list[int]) -> tuple[Simulator, tuple[int, ...]]:
        stages = len(simulator.experiment.stages)
        return simulator, tuple(gpus + 1 for gpus in (*first, *second)[:stages])

    return st.builds(build, simulators, _coded(40, 40, 40, 40), _coded(40, 40))
