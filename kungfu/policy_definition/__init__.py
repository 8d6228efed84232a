"""Policies: pure functions from the signals of a step to rules, and combinations of several policies on one job."""

from kungfu.policy_definition.combine import at_least, at_most, compose, first, shadow
from kungfu.policy_definition.policy import Policy, checked_policies, policy

__all__ = ["Policy", "at_least", "at_most", "checked_policies", "compose", "first", "policy", "shadow"]
