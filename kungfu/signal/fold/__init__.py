"""Folds: signals with memory, whose update is itself a small dataflow."""

from kungfu.signal.fold.fold import Filled, Fold, Recurrence, fold
from kungfu.signal.fold.history import count, cumulative, delta, ema, hold, previous, rising, streak
from kungfu.signal.fold.size_statistics import SizeStatistics, statistics_by_size
from kungfu.signal.fold.synchronized import synchronized
from kungfu.signal.fold.tables import Window, by_size, window

__all__ = [
    "Filled",
    "Fold",
    "Recurrence",
    "SizeStatistics",
    "Window",
    "by_size",
    "count",
    "cumulative",
    "delta",
    "ema",
    "fold",
    "hold",
    "previous",
    "rising",
    "statistics_by_size",
    "streak",
    "synchronized",
    "window",
]
