"""``kungfu replay RUN``: replays the plan of a recorded run, or another policy, over the recorded steps."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from kungfu.cli.replay.forecast import Forecast, forecast, forecast_as_json, forecast_as_text
from kungfu.cli.replay.timeline import OF_RULES, TimelineRow, action_of, draw_replay, timeline
from kungfu.cli.report.reader import read_events
from kungfu.cli.report_console import ReportConsole
from kungfu.compiler import CompiledPolicies, FiredRule, compile_policies
from kungfu.control.synchronisation import Synchronisation, average_models
from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_json
from kungfu.event_log.events import LoggedEvent, RescaleEvent
from kungfu.event_log.numbers import as_json
from kungfu.event_log.values import counted
from kungfu.policy_definition.policy_path import load_policy
from kungfu.trace import Replayed, Trace, read_trace, replay

_OTHER = (
    "this record is of a run that followed its own policies: what this policy decides changes neither the sizes nor "
    "the batches and losses that it sees"
)


@dataclass(frozen=True)
class _Replay:
    """A replay, together with the recorded run that it replays."""

    trace: Trace
    whose: Literal["the run's", "another"]  # the plan is the run's own, or that of another policy
    replayed: Replayed
    events: Sequence[LoggedEvent]
    rows: Sequence[TimelineRow]
    forecast: Forecast | None = None  # the estimated cost of another plan on the whole job

    @property
    def remarks(self) -> tuple[str, ...]:
        return (*self.trace.remarks, *self.replayed.remarks, *([_OTHER] if self.whose == "another" else []))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line of ``kungfu replay``."""
    add = parser.add_argument
    add("folder", type=Path, metavar="RUN", help="the folder of the run's record")
    other = "MODULE_OR_PATH:POLICY(ARGS) instead of the run's own policies; repeat it to combine several"
    add("--policy", action="append", default=[], metavar="SPEC", help=other)
    add("--from", type=int, default=0, dest="start", metavar="STEP", help="begin at this step (the first)")
    add("--plot", nargs="?", type=Path, const=Path(), metavar="FILE", help="draw the replay (RUN/replay.png)")
    add("--json", action="store_true", help="print one JSON object, for programs")


def run(given: argparse.Namespace) -> int:
    """Prints the timeline; returns the exit code. Raises ``UsageError`` or ``PolicyError`` if the replay fails."""
    trace = read_trace(given.folder)
    plan = _compiled(given.policy, trace) if given.policy else _own(trace)
    whose: Literal["the run's", "another"] = "another" if given.policy else "the run's"
    replayed = replay(plan, trace, whose=whose, start=given.start)
    events = _events(given.folder)
    costs = forecast(plan, trace, events) if given.policy and not trace.averages_models else None
    if given.policy and trace.averages_models:
        remark = "the run averages models, so most of its steps are not in the record: no costs are estimated"
        trace = replace(trace, remarks=(*trace.remarks, remark))
    result = _Replay(trace, whose, replayed, events, timeline(replayed.decisions, events, start=given.start), costs)
    if given.plot is not None:
        target = given.folder / "replay.png" if given.plot == Path() else given.plot
        draw_replay(trace, replayed.decisions, result.rows, target)
    if given.json:
        print(json.dumps(_as_json(result), allow_nan=False))
    else:
        _print(result, ReportConsole(highlight=False))
    return 0


def _own(trace: Trace) -> CompiledPolicies:
    if trace.plan is not None:
        return trace.plan
    if trace.policies:
        return _compiled(trace.policies, trace)
    raise UsageError(
        "the record does not hold the plan that ran; name its policies, as in --policy 'PATH.py:NAME(ARGS)'"
    )


def _compiled(specs: Sequence[str], trace: Trace) -> CompiledPolicies:
    """The plan of these policies for a run that synchronises as the recorded one did."""
    sync: Synchronisation = average_models(every=1) if trace.averages_models else "gradients"
    return compile_policies([load_policy(one) for one in specs], sync=sync)


def _events(folder: Path) -> Sequence[LoggedEvent]:
    """The events of the run; empty if the folder has only a trace, which is enough for a replay."""
    record = folder.parent if folder.suffix == ".jsonl" else folder
    return read_events(record).events if (record / "events.jsonl").exists() else ()


def _as_json(result: _Replay) -> dict[str, Any]:
    steps = [one.step for one in result.trace.steps]
    return {
        "steps": [steps[0], steps[-1]],
        "policy": result.whose,
        "decisions": [_decision(one) for one in result.replayed.decisions],
        "run": [event_to_json(one) for one in result.events if isinstance(one, OF_RULES)],
        "rescales": [event_to_json(one) for one in result.events if isinstance(one, RescaleEvent)],
        "differences": list(result.replayed.differences),
        "remarks": list(result.remarks),
        **({} if result.forecast is None else {"forecast": forecast_as_json(result.forecast)}),
    }


def _decision(one: FiredRule) -> dict[str, Any]:
    return {
        "step": one.step,
        "rule": one.rule,
        "standing": one.mode,
        "action": action_of(one.action),
        "value": as_json(one.value, nan=None),  # NaN stands for an action without a number, such as a stop
        "ranks": list(one.ranks),
        "saw": as_json(one.inputs),
    }


def _print(result: _Replay, console: Console) -> None:
    steps = result.trace.steps
    sizes = sorted({one.size for one in steps})
    size = counted(sizes[0], "peer") if len(sizes) == 1 else f"{sizes[0]} to {counted(sizes[-1], 'peer')}"
    plan = "its own policies" if result.whose == "the run's" else "another policy"
    head = f"steps {steps[0].step} to {steps[-1].step} of {size}, {plan} replayed\n"
    console.print(Text(head, style="bold"), soft_wrap=True)
    console.print(_table(result.rows) if result.rows else Text("no rule fired, and nothing was decided in the run"))
    for line in _verdict(result):
        console.print(line, soft_wrap=True)
    for part in forecast_as_text(result.forecast) if result.forecast else ():
        console.print(part, soft_wrap=isinstance(part, Text))


def _table(rows: Sequence[TimelineRow]) -> Table:
    names = ("rule", "in the replay", "in the run")
    table = Table(Column("step", justify="right"), *(Column(name, overflow="fold") for name in names))
    for row in rows:
        again = f", {row.times} times up to step {row.last}" if row.times > 1 else ""
        table.add_row(*(Text(cell) for cell in (str(row.step), row.rule, row.replayed + again, row.run)))
    return table


def _verdict(result: _Replay) -> Iterator[Text]:
    if result.whose == "the run's":
        differences = result.replayed.differences
        if not differences:
            decided = counted(len(result.replayed.decisions), "decision")
            yield Text(f"the replay decides as the run did: {decided}, and the same states of its folds", style="green")
        for one in differences:
            yield Text(f"differs: {one}", style="red")
    for remark in result.remarks:
        yield Text(f"note: {remark}", style="yellow")
