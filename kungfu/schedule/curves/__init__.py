"""Throughput against number of GPUs: measured, interpolated, or with a batch that follows the size."""

from kungfu.schedule.curves.analytic import ring_curve
from kungfu.schedule.curves.curve import LINEAR, Curve, best_gpus, rate_at, rates_up_to
from kungfu.schedule.curves.hybrid import hybrid_batch, hybrid_curve
from kungfu.schedule.curves.measured import Measured, read_throughputs

__all__ = [
    "LINEAR",
    "Curve",
    "Measured",
    "best_gpus",
    "hybrid_batch",
    "hybrid_curve",
    "rate_at",
    "rates_up_to",
    "read_throughputs",
    "ring_curve",
]
