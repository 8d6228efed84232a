"""Adaptive training policies, declared in Python and compiled into TensorFlow's training graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kungfu import control, monitor, ops
from kungfu.errors import KungfuError, PolicyError
from kungfu.ops import clip, log, maximum, minimum, round, sqrt, where
from kungfu.policy_definition import Budget, Policy, at_least, at_most, compose, first, policy, shadow
from kungfu.signal import Signal, fold

if TYPE_CHECKING:
    from kungfu.training.attach import attach
    from kungfu.training.training import SKIPPED, Training

__all__ = [
    "SKIPPED",
    "Budget",
    "KungfuError",
    "Policy",
    "PolicyError",
    "Signal",
    "Training",
    "at_least",
    "at_most",
    "attach",
    "clip",
    "compose",
    "control",
    "first",
    "fold",
    "log",
    "maximum",
    "minimum",
    "monitor",
    "ops",
    "policy",
    "round",
    "shadow",
    "sqrt",
    "where",
]


def __getattr__(name: str) -> Any:
    """What needs TensorFlow is loaded when it is first asked for: planning and explaining do without."""
    if name in ("SKIPPED", "Training", "attach"):
        from kungfu import training

        return getattr(training, name)
    raise AttributeError(f"module 'kungfu' has no attribute {name!r}")
