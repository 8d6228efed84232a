"""``kungfu explain SPEC ...``: what policies compute, when, what they share, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from kungfu.compiler import compile_policies, explain, explain_json
from kungfu.policy_definition.policy_path import load_policy

__all__ = ["explain_command"]


def explain_command(
    specs: Sequence[str], *, form: Literal["text", "json"] = "text", monitors: Literal["folded", "open"] = "folded"
) -> int:
    """Prints the plan of the policies that `specs` name, as in ``kungfu.policies:gns_batch(max_peers=8)``.

    Several stand for several policies on one job. The text folds monitors into a line each, or opens them. Gives the
    exit code. Raises `PolicyError` where a policy does not resolve, or where they do not compile together. TensorFlow
    is not imported.
    """
    plan = compile_policies([load_policy(one) for one in specs])
    text = explain(plan, monitors=monitors) if form == "text" else json.dumps(explain_json(plan), indent=2) + "\n"
    print(text, end="")
    return 0
