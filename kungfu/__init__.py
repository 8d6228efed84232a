"""Adaptive training policies, declared in Python and compiled into TensorFlow's training graph."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kungfu import control, monitor, ops, worth
from kungfu.control import Budget, Keep, Rule
from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure, PolicyError, UsageError
from kungfu.policy_definition import Policy, at_least, at_most, compose, first, policy, shadow
from kungfu.signal import Signal, TrainingSignals, fold

if TYPE_CHECKING:
    from kungfu import data as data
    from kungfu import keras as keras
    from kungfu import policies
    from kungfu.training.loop.attach import attach
    from kungfu.training.loop.training import Training

__all__ = [
    "Budget",
    "DeadlineExceeded",
    "Keep",
    "KungfuError",
    "PeerFailure",
    "Policy",
    "PolicyError",
    "Rule",
    "Signal",
    "Training",
    "TrainingSignals",
    "UsageError",
    "at_least",
    "at_most",
    "attach",
    "compose",
    "control",
    "first",
    "fold",
    "monitor",
    "ops",
    "policies",
    "policy",
    "shadow",
    "worth",
]

__version__ = "0.1.0"

_FROM_TRAINING = frozenset({"Training", "attach"})


def __getattr__(name: str) -> Any:
    """Loads `policies` and the names that need TensorFlow on first use, since planning does not need them."""
    if name in _FROM_TRAINING:
        return getattr(importlib.import_module("kungfu.training"), name)
    if name in ("data", "keras", "policies"):
        return importlib.import_module(f"kungfu.{name}")
    instead = f"; write kf.ops.{name}" if name in ops.__all__ else ""
    raise AttributeError(f"module 'kungfu' has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    """The public names, including names that are loaded later."""
    return sorted({*globals(), *__all__, "data", "keras"})
