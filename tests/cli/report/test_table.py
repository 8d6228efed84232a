"""The table of decisions."""

from __future__ import annotations

import io

from rich.console import Console

from kungfu.cli.report import decisions_table
from tests.cli.recorded import FAILED, GROWN, Events


def printed(events: Events, *, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(decisions_table(events))
    return out.getvalue()


def test_each_decision_and_rescale_has_a_row_and_nothing_else_has() -> None:
    table = decisions_table(GROWN)
    assert table.row_count == 4
    assert "gns_batch" in printed(GROWN)
    assert "noise scale 50.7" in printed(GROWN)
    assert "135 ms" in printed(GROWN)


def test_a_combined_rule_says_who_won() -> None:
    assert "at_most(gns_batch, schedule): schedule won" in printed(GROWN, width=200)


def test_a_refusal_has_a_row_with_its_reason() -> None:
    assert "refused: peer 2: waited 300 s" in printed(FAILED)


def test_unknown_values_and_no_values_are_shown_and_do_not_crash() -> None:
    assert decisions_table([]).row_count == 0
    out = printed([{"event": "decision", "step": None, "saw": None}, {"event": "rescale", "parts": 3}])
    assert "- -> -" in out


def test_a_narrow_terminal_holds_it() -> None:
    assert max(len(line) for line in printed(GROWN, width=40).splitlines()) <= 40
