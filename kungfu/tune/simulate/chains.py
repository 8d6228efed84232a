"""Trials that queue for GPUs: each goes to the first GPU that is free."""

from __future__ import annotations

import heapq

import numpy as np

from kungfu.tune.model.latency import Seconds

__all__ = ["assign", "slowest_chain"]


def assign(seconds: list[float], *, chains: int) -> list[int]:
    """For each trial the trial that it waits for, -1 for none: list scheduling in the trials' order.

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
    """When the last of the trials ends; ``seconds`` is (trials, samples), the answer (samples,).

    Equal durations need ``ceil(trials / chains)`` waves; with as many chains as trials it is the longest trial.
    """
    trials = len(seconds)
    if chains >= trials:
        return np.asarray(seconds.max(axis=0))
    if np.ptp(seconds) == 0:
        return np.asarray(seconds[0] * -(-trials // chains))
    return np.array([_list_schedule(column.tolist(), chains=chains) for column in seconds.T])


def _list_schedule(seconds: list[float], *, chains: int) -> float:
    free = sorted(seconds[:chains])
    for duration in seconds[chains:]:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
