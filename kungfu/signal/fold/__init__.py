"""Folds: signals with memory, whose update is itself a small dataflow."""

from kungfu.signal.fold.carried import carried
from kungfu.signal.fold.fold import Filled, Fold, Recurrence, fold
from kungfu.signal.fold.tables import Window

__all__ = ["Filled", "Fold", "Recurrence", "Window", "carried", "fold"]
