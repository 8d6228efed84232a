"""Signals: the values that a policy computes with, as nodes of a dataflow graph."""

from kungfu.signal.fold import Filled, Fold, Recurrence, SizeStatistics, fold, synchronized
from kungfu.signal.gate import every_steps, is_exact, is_gate
from kungfu.signal.node import (
    Collective,
    Constant,
    Map,
    OnRescale,
    Placeholder,
    Signal,
    Source,
    as_signal,
    operate,
    topological,
    where,
)
from kungfu.signal.operation import NEST, SCALAR, VECTOR, VOCABULARY, DType, Operation, SignalType
from kungfu.signal.sources import GATE_SOURCES, SOURCES, Placement
from kungfu.signal.training import TrainingSignals

__all__ = [
    "GATE_SOURCES",
    "NEST",
    "SCALAR",
    "SOURCES",
    "VECTOR",
    "VOCABULARY",
    "Collective",
    "Constant",
    "DType",
    "Filled",
    "Fold",
    "Map",
    "OnRescale",
    "Operation",
    "Placeholder",
    "Placement",
    "Recurrence",
    "Signal",
    "SignalType",
    "SizeStatistics",
    "Source",
    "TrainingSignals",
    "as_signal",
    "every_steps",
    "fold",
    "is_exact",
    "is_gate",
    "operate",
    "synchronized",
    "topological",
    "where",
]
