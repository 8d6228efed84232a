"""The parts that a plan's time is made of, each simulated once: the wait, the set-up, the training of a stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kungfu.tune.model.latency import Seconds
from kungfu.tune.simulate import draws
from kungfu.tune.simulate.chains import slowest_chain
from kungfu.tune.simulate.layout import instances_for, share
from kungfu.tune.simulate.simulator import Simulator, remember

__all__ = ["Training", "instances", "setup", "sync", "training", "trials", "wait"]


@dataclass(frozen=True)
class Training:
    """``seconds`` from the first iteration to the end of the meeting, and ``gpu_s`` trained: both (runs,)."""

    seconds: Seconds
    gpu_s: Seconds


def instances(simulator: Simulator, *, stage: int, gpus: int) -> int:
    """How many instances stage ``stage`` needs for ``gpus`` GPUs."""
    cloud = simulator.cloud
    work = simulator.experiment.stages[stage]
    return instances_for(work, gpus=gpus, node=cloud.instance.gpus, packing=cloud.packing)


def wait(simulator: Simulator, *, stage: int) -> Seconds:
    """The provider's queue when stage ``stage`` asks for more: (runs,)."""

    def compute() -> Seconds:
        latency = simulator.cloud.delays.scale
        return draws.scale_seconds(latency, stage=stage, samples=simulator.runs, seed=simulator.seed)

    return remember(simulator, key=("wait", stage), compute=compute)


def setup(simulator: Simulator, *, stage: int, count: int) -> Seconds:
    """The set-up of each of ``count`` new instances: (count, runs)."""
    latency = simulator.cloud.delays.init
    return draws.init_seconds(latency, stage=stage, count=count, samples=simulator.runs, seed=simulator.seed)


def slowest_setup(simulator: Simulator, *, stage: int, count: int) -> Seconds:
    """When the last of ``count`` new instances is ready: (runs,)."""

    def compute() -> Seconds:
        return np.asarray(setup(simulator, stage=stage, count=count).max(axis=0))

    distinct = count if simulator.cloud.delays.init.sigma_s > 0 else 1
    return remember(simulator, key=("setup", stage, distinct), compute=compute)


def sync(simulator: Simulator, *, stage: int) -> Seconds:
    """The meeting at the end of stage ``stage``: (runs,)."""

    def compute() -> Seconds:
        latency = simulator.cloud.delays.sync
        return draws.sync_seconds(latency, stage=stage, samples=simulator.runs, seed=simulator.seed)

    return remember(simulator, key=("sync", stage), compute=compute)


def trials(simulator: Simulator, *, stage: int, gpus_per_trial: int) -> Seconds:
    """How long each trial of the stage trains, start-up included: (trials, runs)."""

    def compute() -> Seconds:
        return draws.train_seconds(
            simulator.scaling.iteration(gpus_per_trial),
            startup=simulator.cloud.delays.startup,
            stage=(stage, simulator.experiment.stages[stage]),
            samples=simulator.runs,
            seed=simulator.seed,
        )

    return remember(simulator, key=("trials", stage, gpus_per_trial), compute=compute)


def training(simulator: Simulator, *, stage: int, gpus: int) -> Training:
    """The training of stage ``stage`` on ``gpus`` GPUs."""

    def compute() -> Training:
        shared = share(simulator.experiment.stages[stage], gpus=gpus)
        drawn = trials(simulator, stage=stage, gpus_per_trial=shared.gpus_per_trial)
        seconds = slowest_chain(drawn, chains=shared.at_once) + sync(simulator, stage=stage)
        return Training(seconds, drawn.sum(axis=0) * shared.gpus_per_trial)

    return remember(simulator, key=("training", stage, gpus), compute=compute)
