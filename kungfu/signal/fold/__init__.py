"""Folds: signals with memory, updated by a small dataflow."""

from kungfu.signal.fold.fold import Filled, Fold, Recurrence, fold
from kungfu.signal.fold.history import Window, synchronized
from kungfu.signal.fold.size_statistics import SizeStatistics

__all__ = ["Filled", "Fold", "Recurrence", "SizeStatistics", "Window", "fold", "synchronized"]
