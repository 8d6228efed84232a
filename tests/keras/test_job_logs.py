"""The numbers of an epoch, computed when a callback looks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kungfu.keras.metrics import JobLogs


class Counted:
    """Metrics with two totals."""

    def __init__(self) -> None:
        self.totals = [tf.Variable(6.0), tf.Variable([2.0, 4.0])]
        self.traces = 0

    def numbers(self, totals: Sequence[Any]) -> dict[str, Any]:
        self.traces += 1
        return {"mean": totals[0] / totals[1][0], "last": totals[1][1]}


def test_a_program_of_many_fits_is_not_warned_of_traces_and_each_fit_has_one() -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    tf.get_logger().addHandler(handler)
    try:
        for _ in range(8):
            metrics = Counted()
            logs = JobLogs(metrics.totals, metrics.numbers)
            untouched = logs.so_far()
            assert metrics.traces == 0, "nobody has looked"
            assert logs.so_far() == {"mean": 3.0, "last": 4.0}
            metrics.totals[0].assign(8.0)
            assert logs.so_far()["mean"] == 4.0
            assert untouched["mean"] == 3.0, "as it was then"
            assert metrics.traces == 1
    finally:
        tf.get_logger().removeHandler(handler)
    assert told == []
