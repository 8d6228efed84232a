"""``kungfu explain SPEC``: what a policy computes, when, and what it costs."""

from __future__ import annotations

from kungfu.compiler import compile_policies
from kungfu.policy_path import load_policy

__all__ = ["explain_command"]


def explain_command(spec: str) -> int:
    """Prints the plan of the policy that `spec` names, as in ``kungfu.policies:gns_batch(max_peers=8)``.

    Gives the exit code. Raises `PolicyError` where the policy does not resolve or does not compile. TensorFlow is not
    imported.
    """
    plan = compile_policies([load_policy(spec)])
    print(plan.explain(), end="")
    return 0
