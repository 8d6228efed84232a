"""Prints the precheck and the outcome of ``kungfu chaos``, as tables or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from kungfu.cli.chaos.outcome import ChaosReport, FaultOutcome, ViewCheck
from kungfu.cli.chaos.precheck import PrecheckedFault
from kungfu.event_log.numbers import as_json
from kungfu.event_log.values import UNKNOWN, counted, duration, figure, peers_named
from kungfu.testing.faults import Injection

Form = Literal["text", "json"]


def print_precheck(faults: Sequence[PrecheckedFault], *, form: Form, stderr: bool = False) -> None:
    """Prints each fault of a schedule with its moment, the processes that it would hit, and its obstacle."""
    if form == "json":
        print(json.dumps({"faults": [asdict(one) for one in faults]}, indent=2))
        return
    table = Table(*(Column(name, overflow="fold") for name in ("", "when", "what", "now that would be", "")))
    for number, one in enumerate(faults, start=1):
        last = Text(f"cannot be done: {one.obstacle}", style="bold red") if one.obstacle else Text(one.remark)
        table.add_row(str(number), Text(one.when), Text(one.what), Text(one.hits), last)
    Console(highlight=False, stderr=stderr).print(table)


def injection_line(one: Injection) -> str:
    """The line that is printed when a fault is injected."""
    if one.at is None:
        return f"{one.fault}: not carried out: {one.why}"
    hit = f" ({peers_named(one.peers)})" if one.peers else ""
    return f"{time.strftime('%H:%M:%S', time.localtime(one.at))} step {figure(one.step)}: {one.fault.action}{hit}"


def print_report(report: ChaosReport, *, form: Form) -> None:
    """Prints the outcomes of the faults, and whether the guarantees held."""
    if form == "json":
        print(json.dumps(as_json({**asdict(report), "held": report.held}, nan=None), indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    console.print(_table(report.faults))
    for line in _details(report):
        console.print(Text(line), soft_wrap=True)
    # The result comes last, because users look for it there.
    for problem in report.problems:
        console.print(Text(f"did not hold: {problem}", style="bold red"), soft_wrap=True)
    if report.held:
        console.print(Text(f"everything held under {counted(len(report.faults), 'fault')}", style="bold green"))


def _table(faults: Sequence[FaultOutcome]) -> Table:
    table = Table()
    for name in ("fault", "step", "hit", "noticed", "stood still", "whole after", "what came of it"):
        numeric = name in ("step", "noticed", "stood still", "whole after")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for one in faults:
        hit = peers_named(one.peers) if one.peers else UNKNOWN
        times = (duration(one.noticed_s), duration(one.stop_s), duration(one.whole_s))
        style = "" if one.held else "bold red"
        table.add_row(Text(one.fault), figure(one.step), hit, *times, Text(one.result, style=style))
    return table


def _details(report: ChaosReport) -> list[str]:
    samples = [f"samples: {report.samples.found}", *(f"  note: {note}" for note in report.samples.notes)]
    ended = [] if report.code is None else [f"the job ended meanwhile, with exit code {report.code}"]
    events = ["what happened:", *(f"  {line}" for line in report.events)] if report.events else []
    return [_states(report.views), *samples, *ended, *events]


def _states(views: Sequence[ViewCheck]) -> str:
    """The comparisons of the peers' states after changes of the membership."""
    compared = [one for one in views if one.digests != "one peer"]
    rounded = [str(one.version) for one in compared if one.digests == "equal after rounding"]
    if not views:
        return "states: the membership did not change, so nothing was compared anew"
    alone = len(views) - len(compared)
    parts = [f"equal on all peers in {counted(len(compared), 'view')}"] if compared else []
    parts += [f"{counted(alone, 'view')} of one peer, with nothing to compare"] if alone else []
    evened = f"; rounding was evened out in view {', '.join(rounded)}" if rounded else ""
    return f"states: {', '.join(parts)}{evened}"
