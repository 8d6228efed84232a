"""Triggers, actions, and the rules made of both."""

from kungfu.control.action import (
    Action,
    Call,
    Checkpoint,
    Evict,
    Keep,
    Replace,
    Rescale,
    Restore,
    ScaleLearningRate,
    SetGlobalBatchSize,
    SetLearningRate,
    SetVariable,
    Stop,
    Synchronise,
)
from kungfu.control.budget import Budget
from kungfu.control.hill_climbing import Growth, Walk, check_peers, hill_climb, settle, settled_walk
from kungfu.control.measured_sizes import SizeEstimate
from kungfu.control.rate_limit import Cooldown
from kungfu.control.rule import Rule
from kungfu.control.synchronisation import AverageModels, average_models
from kungfu.control.trigger import AtRescale, Trigger, always, every, learning_rate, on_rescale

__all__ = [
    "Action",
    "AtRescale",
    "AverageModels",
    "Budget",
    "Call",
    "Checkpoint",
    "Cooldown",
    "Evict",
    "Growth",
    "Keep",
    "Replace",
    "Rescale",
    "Restore",
    "Rule",
    "ScaleLearningRate",
    "SetGlobalBatchSize",
    "SetLearningRate",
    "SetVariable",
    "SizeEstimate",
    "Stop",
    "Synchronise",
    "Trigger",
    "Walk",
    "always",
    "average_models",
    "check_peers",
    "every",
    "hill_climb",
    "learning_rate",
    "on_rescale",
    "settle",
    "settled_walk",
]
