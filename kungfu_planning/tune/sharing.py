"""The sharing of a stage's GPUs: the trials that train at once, the trials that wait, and the number of instances."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from kungfu_planning.tune.cloud import Packing
from kungfu_planning.tune.experiment import Stage
from kungfu_planning.tune.latency import Seconds


@dataclass(frozen=True)
class Share:
    """A share: ``at_once`` trials train at once on ``gpus_per_trial`` GPUs each; other trials wait in a queue."""

    gpus_per_trial: int
    at_once: int


def share(stage: Stage, *, gpus: int) -> Share:
    """The fair share of a stage: ``floor(gpus / trials)`` GPUs per trial; if that is 0, one GPU for each running trial.

    The remaining GPUs are idle.

    Args:
        stage: the number of trials, and their work.
        gpus: the GPUs of the stage, at least 1.

    >>> share(Stage(trials=3, iterations=9), gpus=14), share(Stage(trials=32, iterations=1), gpus=24)
    (Share(gpus_per_trial=4, at_once=3), Share(gpus_per_trial=1, at_once=24))
    """
    if gpus >= stage.trials:
        return Share(gpus // stage.trials, stage.trials)
    return Share(1, gpus)


def instances_for(stage: Stage, *, gpus: int, node: int, packing: Packing) -> int:
    """The number of instances of a stage.

    Args:
        stage: the number of trials, and their work.
        gpus: the GPUs of the stage.
        node: the GPUs of an instance.
        packing: ``counted`` gives ``ceil(gpus / node)``, as the paper counts; ``placed`` gives enough instances that
            each trial below ``node`` GPUs stays on one instance, and each larger trial has whole instances.

    >>> [instances_for(Stage(10, 3), gpus=30, node=4, packing=packing) for packing in ("counted", "placed")]
    [8, 10]
    """
    if packing == "counted":
        return -(-gpus // node)
    shared = share(stage, gpus=gpus)
    # Several trials fit on an instance; else a trial takes several instances.
    if shared.gpus_per_trial < node:
        return -(-shared.at_once // (node // shared.gpus_per_trial))
    return shared.at_once * -(-shared.gpus_per_trial // node)


def assign(seconds: list[float], *, chains: int) -> list[int]:
    """The trial for which each trial waits (-1 for none), if each trial in turn gets the GPUs that are free first.

    Args:
        seconds: The duration of each trial.
        chains: The number of trials that run at once, at least 1.

    Returns:
        For each trial, the index of the previous trial in its chain, or -1.

    >>> assign([5.0, 2.0, 1.0, 1.0], chains=2)
    [-1, -1, 1, 2]
    """
    free = [(0.0, -1, chain) for chain in range(chains)]
    before = []
    for trial, duration in enumerate(seconds):
        start, previous, chain = heapq.heappop(free)
        before.append(previous)
        heapq.heappush(free, (start + duration, trial, chain))
    return before


def slowest_chain(seconds: Seconds, *, chains: int) -> Seconds:
    """The seconds until the last trial ends: (samples,), if ``chains`` of the trials in ``seconds`` train at once.

    ``seconds`` has the shape (trials, samples). Trials of equal length train in ``ceil(trials / chains)`` rounds. If
    all trials train at once, the longest trial counts.
    """
    trials = len(seconds)
    # All at once.
    if chains >= trials:
        return np.asarray(seconds.max(axis=0))
    # Equal durations run in waves.
    if np.ptp(seconds) == 0:
        return np.asarray(seconds[0] * -(-trials // chains))
    return np.array([_list_schedule(column.tolist(), chains=chains) for column in seconds.T])


def _list_schedule(seconds: list[float], *, chains: int) -> float:
    free = sorted(seconds[:chains])
    for duration in seconds[chains:]:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
