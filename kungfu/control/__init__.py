"""Triggers, and the actions that they release."""

from kungfu.control.rule import Action, Call, Keep, Rescale, Rule
from kungfu.control.trigger import Trigger, always, every

__all__ = ["Action", "Call", "Keep", "Rescale", "Rule", "Trigger", "always", "every"]
