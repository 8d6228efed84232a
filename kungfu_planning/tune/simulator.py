"""A simulated job on a cloud, for the evaluation of plans: each part of a plan's time is drawn once and cached.

The parts are the provider's queue, the set-up of instances, the training of a stage's trials, and the synchronisation
at the end of a stage. A random duration is keyed by its purpose, not by the order of requests, so that two plans are
compared with the same draws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np

from kungfu.errors import UsageError
from kungfu_planning.tune.cloud import Cloud
from kungfu_planning.tune.experiment import Experiment
from kungfu_planning.tune.latency import Latency, ScalingCurve, Seconds, quantile, total
from kungfu_planning.tune.sharing import instances_for, share, slowest_chain

T = TypeVar("T")
_MOST_DRAWN = 10_000_000


@dataclass(frozen=True)
class Simulator:
    """A simulated job on a cloud; caches every simulated part of a plan.

    Two plans are compared with the same draws, and the same seed gives the same result.

    Args:
        experiment: the stages of the search.
        scaling: the scaling curve of a trial.
        cloud: the provider.
        samples: the number of drawn runs per estimate, at least 1; ignored if nothing is random, as one run is exact.
        seed: the seed of the draws, at least 0.

    Raises:
        UsageError: There is no sample, the seed is negative, or trials times runs exceed ten million in a stage.
    """

    experiment: Experiment
    scaling: ScalingCurve
    cloud: Cloud
    samples: int = 20
    seed: int = 0
    _memory: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"a simulation of {self.samples} samples says nothing; draw at least 1")
        trials = max(stage.trials for stage in self.experiment.stages)
        if trials * self.runs > _MOST_DRAWN:
            raise UsageError(
                f"{trials:,} trials in {self.runs:,} runs are {trials * self.runs:,} durations in one stage, more than"
                f" {_MOST_DRAWN:,}: give fewer trials or samples"
            )
        if self.seed < 0:
            raise UsageError(f"the seed is {self.seed}; give 0 or more")

    @property
    def is_random(self) -> bool:
        """True if an iteration or a delay of the cloud has a random duration, so that the runs of a plan differ."""
        delays = self.cloud.delays
        latencies = (delays.scale, delays.init, delays.startup, delays.sync)
        return self.scaling.sigma_s > 0 or any(latency.sigma_s > 0 for latency in latencies)

    @property
    def runs(self) -> int:
        """The number of drawn runs: ``samples``, or 1 if nothing is random."""
        return self.samples if self.is_random else 1


def remember(simulator: Simulator, *, key: Hashable, compute: Callable[[], T]) -> T:
    """The result of ``compute()``, which is called only if ``simulator`` has no result for ``key`` yet."""
    known: T | None = simulator._memory.get(key)
    if known is None:
        known = simulator._memory[key] = compute()
    return known


def redrawn(simulator: Simulator, *, samples: int, seed: int) -> Simulator:
    """The same job and cloud with other drawn runs; cached.

    If trials times ``samples`` exceed ten million in a stage, there are fewer runs, but at least 1.
    """
    trials = max(stage.trials for stage in simulator.experiment.stages)
    samples = max(1, min(samples, _MOST_DRAWN // trials))
    made = functools.partial(replace, simulator, samples=samples, seed=seed)
    return remember(simulator, key=("redrawn", samples, seed), compute=made)


_SCALE: Final = 0
_INIT: Final = 1
_TRAIN: Final = 2
_SYNC: Final = 3


def _drawn(simulator: Simulator, latency: Latency, *, kind: int, stage: int, count: int = 1) -> Seconds:
    """Draws ``count`` durations in each run: (count, runs); row k does not depend on ``count``."""
    uniform = _generator(simulator.seed, kind=kind, stage=stage).random((count, simulator.runs))
    return quantile(latency, uniform=uniform)


def _drawn_trials(simulator: Simulator, iteration: Latency, *, stage: int) -> Seconds:
    """Draws the seconds that each trial of a stage needs for its start-up and all its iterations: (trials, runs)."""
    work, startup, samples = simulator.experiment.stages[stage], simulator.cloud.delays.startup, simulator.runs
    # Nothing is random: one duration for all.
    if iteration.sigma_s == 0 and startup.sigma_s == 0:
        return np.full((work.trials, samples), startup.mean_s + work.iterations * iteration.mean_s)
    generator = _generator(simulator.seed, kind=_TRAIN, stage=stage)
    start = quantile(startup, uniform=generator.random((work.trials, samples)))
    trials = [total(iteration, count=work.iterations, samples=samples, generator=generator) for _ in range(work.trials)]
    return np.asarray(start + np.stack(trials))


def _generator(seed: int, *, kind: int, stage: int) -> np.random.Generator:
    return np.random.default_rng((seed, kind, stage))


@dataclass(frozen=True)
class StageTraining:
    """A stage's training in each run: ``seconds``, with the synchronisation, and ``gpu_s``, the trials' GPU seconds."""

    seconds: Seconds
    gpu_s: Seconds


def stage_instances(simulator: Simulator, *, stage: int, gpus: int) -> int:
    """The number of instances that stage ``stage`` needs for ``gpus`` GPUs."""
    cloud = simulator.cloud
    work = simulator.experiment.stages[stage]
    return instances_for(work, gpus=gpus, node=cloud.instance.gpus, packing=cloud.packing)


def provider_wait(simulator: Simulator, *, stage: int) -> Seconds:
    """The seconds that new instances of stage ``stage`` wait in the provider's queue: (runs,)."""

    def compute() -> Seconds:
        return np.asarray(_drawn(simulator, simulator.cloud.delays.scale, kind=_SCALE, stage=stage)[0])

    return remember(simulator, key=("wait", stage), compute=compute)


def instance_setups(simulator: Simulator, *, stage: int, count: int) -> Seconds:
    """The set-up time of each of ``count`` new instances: (count, runs)."""
    return _drawn(simulator, simulator.cloud.delays.init, kind=_INIT, stage=stage, count=count)


def slowest_setup(simulator: Simulator, *, stage: int, count: int) -> Seconds:
    """The time until the last of ``count`` new instances is ready: (runs,)."""

    def compute() -> Seconds:
        return np.asarray(instance_setups(simulator, stage=stage, count=count).max(axis=0))

    # If set-ups do not vary, the time is the same for any number of instances.
    distinct = count if simulator.cloud.delays.init.sigma_s > 0 else 1
    return remember(simulator, key=("setup", stage, distinct), compute=compute)


def stage_sync(simulator: Simulator, *, stage: int) -> Seconds:
    """The seconds of the synchronisation at the end of stage ``stage``: (runs,)."""

    def compute() -> Seconds:
        return np.asarray(_drawn(simulator, simulator.cloud.delays.sync, kind=_SYNC, stage=stage)[0])

    return remember(simulator, key=("sync", stage), compute=compute)


def trial_times(simulator: Simulator, *, stage: int, gpus_per_trial: int) -> Seconds:
    """The training time of each trial of a stage, including start-up: (trials, runs)."""

    def compute() -> Seconds:
        return _drawn_trials(simulator, simulator.scaling.iteration(gpus_per_trial), stage=stage)

    return remember(simulator, key=("trials", stage, gpus_per_trial), compute=compute)


def stage_training(simulator: Simulator, *, stage: int, gpus: int) -> StageTraining:
    """The seconds and GPU seconds of the training of stage ``stage`` on ``gpus`` GPUs."""

    def compute() -> StageTraining:
        # Trials that do not run at once form chains; the slowest chain ends the stage.
        shared = share(simulator.experiment.stages[stage], gpus=gpus)
        drawn = trial_times(simulator, stage=stage, gpus_per_trial=shared.gpus_per_trial)
        seconds = slowest_chain(drawn, chains=shared.at_once) + stage_sync(simulator, stage=stage)
        return StageTraining(seconds, drawn.sum(axis=0) * shared.gpus_per_trial)

    return remember(simulator, key=("training", stage, gpus), compute=compute)
