"""Triggers, and the actions that they release."""

from kungfu.control.action import (
    Action,
    Call,
    Checkpoint,
    Evict,
    Keep,
    Replace,
    Rescale,
    SetGlobalBatchSize,
    SetLearningRate,
    Stop,
)
from kungfu.control.explore import next_size
from kungfu.control.on_rescale import AtRescale, on_rescale
from kungfu.control.pace import Budget, Cooldown
from kungfu.control.rule import Rule
from kungfu.control.trigger import Trigger, always, every

__all__ = [
    "Action",
    "AtRescale",
    "Budget",
    "Call",
    "Checkpoint",
    "Cooldown",
    "Evict",
    "Keep",
    "Replace",
    "Rescale",
    "Rule",
    "SetGlobalBatchSize",
    "SetLearningRate",
    "Stop",
    "Trigger",
    "always",
    "every",
    "next_size",
    "on_rescale",
]
