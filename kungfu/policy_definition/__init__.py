"""Policies: pure functions from the signals of a step to rules, and combinations of several on one job."""

from kungfu.control import Action, Budget, Call, Rescale, Rule
from kungfu.policy_definition.combine import at_least, at_most, compose, first, shadow
from kungfu.policy_definition.policy import Policy, checked_policies, policy

__all__ = [
    "Action",
    "Budget",
    "Call",
    "Policy",
    "Rescale",
    "Rule",
    "at_least",
    "at_most",
    "checked_policies",
    "compose",
    "first",
    "policy",
    "shadow",
]
