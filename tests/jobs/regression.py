"""What must hold of every run of ``programs/convex.py``, and where the same run ends that nothing happens to."""

from __future__ import annotations

from typing import Any

import numpy as np

from kungfu.runtime.deciding.data import Position
from kungfu.training.data.order import SerialOrder, Turn
from tests.jobs.harness import Ended

SAMPLES, FEATURES, BATCH = 200, 5, 12


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
    steps = [row["step"] for row in ended.metrics]
    assert max(steps) == epochs * -(-SAMPLES // BATCH), "as many steps as without faults"


def undisturbed(epochs: int) -> np.ndarray:
    """The slope at the end of a run of one peer: gradient descent with momentum on the same batches."""
    draw, order = np.random.default_rng(0), SerialOrder(SAMPLES, 3, "keep")
    x = draw.normal(size=(SAMPLES, FEATURES))
    y = x @ np.arange(1.0, FEATURES + 1)[:, None] + draw.normal(size=(SAMPLES, 1))
    slope = speed = np.zeros((FEATURES, 1))
    turn = Turn(Position(0, 0), 1, 1, 0, BATCH)
    while turn.position.epoch < epochs:
        rows = order.indices(turn)
        gradient = 2 * x[rows].T @ (x[rows] @ slope - y[rows]) / len(rows)
        speed = 0.5 * speed - float(np.float32(0.05)) * gradient
        slope, turn = slope + speed, order.after(turn)
    return slope.ravel()
