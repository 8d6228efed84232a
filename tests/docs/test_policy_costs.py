"""The table of costs: it is what the plans cost, it is complete, and no policy adds a message to a step."""

from __future__ import annotations

import runpy
from pathlib import Path

import kungfu
from kungfu import policies

ROOT = Path(kungfu.__file__).parent.parent


def test_the_page_is_what_the_plans_cost() -> None:
    written = runpy.run_path(str(ROOT / "tools" / "policy_costs.py"))
    assert (ROOT / "docs" / "policy-costs.md").read_text() == written["page"](), "run python tools/policy_costs.py"


def test_every_prebuilt_policy_has_a_line_and_none_adds_a_message() -> None:
    lines = [one for one in (ROOT / "docs" / "policy-costs.md").read_text().splitlines() if one.startswith("| `")]
    assert [one.partition("(")[0].removeprefix("| `") for one in lines] == sorted(policies.__all__)
    assert [one.split(" | ")[1:3] for one in lines] == [["0", "0"]] * len(lines)
