"""Small policies for the tests of the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kungfu import control
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.policy_definition import Policy


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def plan_of(*bodies: Callable[[Any], Any]) -> CompiledPolicies:
    """The plan of a policy for each of these bodies."""
    return compile_policies([Policy(f"policy_{index}", body) for index, body in enumerate(bodies)])


def plan_showing(*signals: Callable[[Any], Any], every: int = 1) -> CompiledPolicies:
    """The plan of one rule that calls a hook with these signals."""
    trigger = control.always() if every == 1 else control.every(every)
    return plan_of(lambda training: trigger.call(ignore, *(one(training) for one in signals)))
