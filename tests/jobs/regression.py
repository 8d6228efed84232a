"""What must hold of every run of ``programs/convex.py``, and where the same run ends that nothing happens to."""

from __future__ import annotations

from typing import Any

import numpy as np

from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.sampler import SerialSampler, StepSlice
from tests.jobs.harness import Ended
from tests.jobs.programs.convex import FEATURES, MOMENTUM, SHIFT, data

SAMPLES, BATCH = 200, 12


def same_as_undisturbed(ended: Ended, found: dict[int, dict[str, Any]], *, epochs: int) -> None:
    """What must hold of every run, whatever happened to it."""
    assert ended.code == 0, ended.output
    assert "InternalError" not in ended.output
    last = [one for one in found.values() if not one["left"]]
    assert len(last) == ended.sizes[-1], ended.output
    assert {one["digest"] for one in last} == {last[0]["digest"]}, "the last peers hold the same state, bit by bit"
    assert all(one["seen"] == {"1.0": SAMPLES * epochs} for one in last), [one["seen"] for one in last]
    assert all(one["traces"] == 1 for one in found.values())
    assert np.abs(np.array(last[0]["slope"]) - undisturbed(epochs)).max() < 1e-6
    steps = epochs * -(-SAMPLES // BATCH)
    assert max(row["step"] for row in ended.metrics) == steps, "as many steps as without faults"
    assert {one["steps"] for one in last} == {steps}, "a registered variable counts them"
    assert [one["told"] for one in last] == [{"steps": steps, "samples": SAMPLES * epochs}] * len(last)
    assert all(one["numbers"] == [SAMPLES, (SAMPLES - 1) / 2] for one in last), "of the last epoch"
    mean = (SHIFT + data(SAMPLES)[0].mean(axis=0)) * (1 - MOMENTUM**steps)
    assert np.abs(np.array(last[0]["mean"]) - mean).max() < 0.08, "BatchNorm's mean is that of so many steps"


def undisturbed(epochs: int) -> np.ndarray:
    """The slope at the end of a run of one peer: gradient descent with momentum on the same batches."""
    (x, y), order = data(SAMPLES), SerialSampler(SAMPLES, 3)
    slope = speed = np.zeros((FEATURES, 1))
    turn = StepSlice(Position(0, 0), 1, 1, 0, BATCH)
    while turn.position.epoch < epochs:
        rows = order.indices(turn)
        gradient = 2 * x[rows].T @ (x[rows] @ slope - y[rows]) / len(rows)
        speed = 0.5 * speed - float(np.float32(0.05)) * gradient
        slope, turn = slope + speed, turn.after(SAMPLES)
    return slope.ravel()
