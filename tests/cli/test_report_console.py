"""The characters of tables: plain ASCII in files and pipes and under NO_COLOR, boxes on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from kungfu.cli.report_console import ReportConsole
from kungfu_planning.cli.table_console import TableConsole

TABLE, TREE = Table("step", title="runs"), Tree("view 2")
TABLE.add_row("7")
TREE.add("peer 1")


class Utf8(io.StringIO):
    encoding = "utf-8"


@pytest.mark.parametrize("kind", [ReportConsole, TableConsole])
@pytest.mark.parametrize(
    ("is_terminal", "variables", "is_plain"), [(False, {}, True), (True, {"NO_COLOR": "1"}, True), (True, {}, False)]
)
def test_boxes_are_ascii_unless_a_terminal_shows_them(
    kind: type[Console], is_terminal: bool, variables: dict[str, str], is_plain: bool
) -> None:
    out = Utf8()
    console = kind(file=out, force_terminal=is_terminal, width=60, _environ=variables)
    console.print(TABLE)
    console.print(TREE)
    assert "step" in out.getvalue()
    assert out.getvalue().isascii() is is_plain
