"""Writes each prebuilt policy's cost per step, from its compiled plan, to a table and to the paragraphs of the
pages."""

from __future__ import annotations

import textwrap
from pathlib import Path

from kungfu import worth
from kungfu.compiler import CompiledPolicies, compile_policies
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

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "policy-costs.md"
BEGIN, END = "<!-- cost: written by tools/policy_costs.py -->\n", "<!-- end of cost -->\n"
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

Each entry comes from the compiled plan: the messages that an ordinary step sends besides the gradient all-reduce, the
further messages of steps with an open gate, the floats appended to each gradient all-reduce (and their bytes with
{PEERS} peers), and the state that a peer holds. `kungfu explain SPEC` shows the same for any policy. `make plots`
writes this page, and a test checks it.

| policy | messages a step | behind gates | floats on the gradients | bytes, {PEERS} peers | bytes of state |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The expected page with the table of costs."""
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


def _floats(plan: CompiledPolicies) -> str:
    fixed, growing = len(plan.piggybacked.scalars), len(plan.piggybacked.vectors)
    return f"{fixed} + {growing} x size" if growing else str(fixed)


def _state(plan: CompiledPolicies) -> int:
    types = [one.type for fold in plan.folds for one in fold.recurrence.updates]
    return sum(BYTES[one.dtype] * (int(one.shape[0]) if one.shape else 1) for one in types)


def paragraph(name: str) -> str:
    """The paragraph about the cost of a policy on its page."""
    spec, policy = next((spec, one) for spec, one in POLICIES.items() if one.name == name)
    plan = compile_policies([policy])
    gated = sum(1 for one in plan.after if one.message and one.gates)
    messages = f"{plan.messages_per_step or 'no'} message in an ordinary step"
    also = f", {gated} more where a gate is open" if gated else ""
    size = 4 * plan.piggybacked.floats(PEERS)
    riders = f"{_floats(plan)} floats ({size} bytes with {PEERS} peers)" if size else "nothing"
    said = (
        f"`{spec}`: {messages}{also}; {riders} on the gradient all-reduce; {_state(plan)} bytes of state ([all of "
        "them](../policy-costs.md))."
    )
    return textwrap.fill(said, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def with_cost(text: str, name: str) -> str:
    """The text of a policy's page with the expected paragraph in place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{paragraph(name)}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
    for one in POLICIES.values():
        own = DOCS / "policies" / f"{one.name}.md"
        own.write_text(with_cost(own.read_text(), one.name))
