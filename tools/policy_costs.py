"""Writes docs/policy-costs.md: what each prebuilt policy adds to a step, from its compiled plan."""

from __future__ import annotations

from pathlib import Path

from kungfu import worth
from kungfu.compiler import Plan, compile_policies
from kungfu.policies import (
    autoscale,
    gns_batch,
    hybrid_scaling,
    linear_scaling,
    replace_stragglers,
    schedule,
    stop_on_nan,
    utility,
)
from kungfu.policy_definition import Policy

PAGE = Path(__file__).parent.parent / "docs" / "policy-costs.md"
BYTES = {"bool": 1, "int64": 8, "float32": 4}
PEERS = 8

POLICIES = {
    "autoscale(max_peers=8)": autoscale(max_peers=8),
    "gns_batch(max_peers=8)": gns_batch(max_peers=8),
    "hybrid_scaling({64: 2, 256: 4})": hybrid_scaling({64: 2, 256: 4}),
    "linear_scaling()": linear_scaling(),
    "replace_stragglers()": replace_stragglers(),
    "schedule({100: 4})": schedule({100: 4}),
    "stop_on_nan()": stop_on_nan(),
    "utility(worth=..., max_peers=8)": utility(
        worth=worth.points({600: 50, 900: 0}), samples=100_000, price_per_hour=1, max_peers=8
    ),
}

HEAD = f"""# What the prebuilt policies cost

Each line is read off the compiled plan: messages of an ordinary step beyond the gradient all-reduce, further ones in
the steps in which a gate is open, what rides on the gradient all-reduce of every step (its bytes with {PEERS} peers),
and the state that a peer holds. `kungfu explain SPEC` shows the same of any policy. This page is written by
`python tools/policy_costs.py`, and a test holds it.

| policy | messages a step | behind gates | floats on the gradients | bytes, {PEERS} peers | bytes of state |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The page as it should be."""
    return HEAD + "".join(f"{_line(name, policy)}\n" for name, policy in POLICIES.items())


def _line(name: str, policy: Policy) -> str:
    plan = compile_policies([policy])
    gated = sum(1 for one in plan.after if one.message and one.gates)
    cells = [
        f"`{name}`",
        plan.messages_per_step,
        gated,
        _floats(plan),
        4 * plan.piggybacked.floats(PEERS),
        _state(plan),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _floats(plan: Plan) -> str:
    fixed, growing = len(plan.piggybacked.scalars), len(plan.piggybacked.vectors)
    return f"{fixed} + {growing} x size" if growing else str(fixed)


def _state(plan: Plan) -> int:
    types = [one.type for fold in plan.folds for one in fold.recurrence.updates]
    return sum(BYTES[one.dtype] * (int(one.shape[0]) if one.shape else 1) for one in types)


if __name__ == "__main__":
    PAGE.write_text(page())
