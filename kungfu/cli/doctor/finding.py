"""Findings of checks, with severity and remedy, and their display."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rich.table import Column, Table
from rich.text import Text

from kungfu.cli.report_console import ReportConsole
from kungfu.event_log.values import counted

Severity = Literal["fine", "remark", "problem"]
_STYLES: dict[Severity, str] = {"fine": "green", "remark": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        severity: "remark" if kungfu works, but not as well as it could; "problem" if kungfu does not work.
        advice: The remedy; empty if there is nothing to do.
        host: The host that the finding is about; empty for this host.
    """

    check: str
    found: str
    severity: Severity = "fine"
    advice: str = ""
    host: str = ""

    def as_remark_if(self, is_scarce: bool, advice: str) -> Finding:
        """The finding as a remark with ``advice`` if a resource ``is_scarce``; otherwise the unchanged finding."""
        return replace(self, severity="remark", advice=advice) if is_scarce else self


def print_findings(findings: Iterable[Finding]) -> None:
    """Prints a row for each finding, and the numbers of problems and remarks."""
    every = list(findings)
    table = Table(*(Column(name, overflow="fold") for name in ("check", "", "found", "what to do")))
    for one in every:
        name = f"{one.check} of {one.host}" if one.host else one.check
        # A version or a path may contain brackets, which rich would read as markup.
        table.add_row(Text(name), Text(one.severity, style=_STYLES[one.severity]), Text(one.found), Text(one.advice))
    console = ReportConsole(highlight=False)
    console.print(table)
    problems, remarks = (sum(one.severity == kind for one in every) for kind in ("problem", "remark"))
    console.print(f"{counted(problems, 'problem')}, {counted(remarks, 'remark')}")
