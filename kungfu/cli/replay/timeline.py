"""The timeline of a replay: each decision beside what really happened then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kungfu.cli.report.sentence import reasons, sentence
from kungfu.cli.report.values import count, figure, mapping_of, number, text_of
from kungfu.compiler import FiredRule
from kungfu.control import Call, Checkpoint, Evict, Replace, Rescale, SetGlobalBatchSize, SetLearningRate, Stop
from kungfu.control.action import Action

__all__ = ["OF_RULES", "Row", "action_of", "timeline", "told"]

Fields = Mapping[str, Any]

# What a rule leaves in the events, with the step in which it fired.
OF_RULES = ("decision", "called", "set", "noted", "shadow", "held", "superseded")
_OF_RUNS = ("rescale", "checkpoint")


@dataclass(frozen=True)
class Row:
    """One line of the timeline. ``times`` a rule decided the same, from ``step`` to ``last``."""

    step: int
    rule: str
    replayed: str
    run: str
    times: int = 1
    last: int = 0


def timeline(decisions: Sequence[FiredRule], events: Sequence[Fields], *, start: int = 0) -> list[Row]:
    """The decisions of a replay and the events of the run, by step; what a rule repeats is one row."""
    by_rule: dict[tuple[int, str], list[Fields]] = {}
    rows = [Row(int(one["step"]), "", "", _happened(one)) for one in _steps_of(events, _OF_RUNS, start)]
    for event in _steps_of(events, OF_RULES, start):
        by_rule.setdefault((int(event["step"]), text_of(event, "rule")), []).append(event)
    for one in decisions:
        matched = by_rule.pop((one.step, one.rule), [])
        rows.append(Row(one.step, one.rule, told(one), "; ".join(_happened(event) for event in matched)))
    rows += [Row(step, rule, "", _happened(event)) for (step, rule), left in by_rule.items() for event in left]
    return list(_collapsed(sorted(rows, key=lambda row: row.step)))


def told(decision: FiredRule) -> str:
    """What a rule asks for in the replay, and what it saw."""
    what = _asked(decision)
    shadow = {"shadow": "in the shadow, it ", "held": "held back by the budget, it "}.get(decision.mode, "")
    saw = reasons(decision.saw)
    return f"{shadow}{what}" + (f" ({saw})" if saw else "")


def action_of(action: Action) -> str:
    """The name under which a policy asks for an action.

    >>> action_of(Stop())
    'stop'
    """
    return _NAMES[type(action)]


_NAMES: Mapping[type, str] = {
    Rescale: "rescale", SetGlobalBatchSize: "set_global_batch_size", SetLearningRate: "set_learning_rate",
    Stop: "stop", Call: "call", Evict: "evict", Replace: "replace", Checkpoint: "checkpoint",
}  # fmt: skip


def _asked(decision: FiredRule) -> str:
    ranks = " and ".join(str(rank) for rank in decision.ranks)
    match decision.action:
        case Rescale():
            return f"wants {count(decision.value, 'peer')}"
        case SetGlobalBatchSize():
            return f"wants a batch of {count(decision.value, 'sample')}"
        case SetLearningRate():
            return f"wants a learning rate of {figure(decision.value)}"
        case Evict():
            return f"evicts rank {ranks}"
        case Replace():
            return f"replaces rank {ranks}"
        case Call():
            return "calls its function"
        case Checkpoint():
            return "wants a checkpoint"
    return "ends training"


def _steps_of(events: Iterable[Fields], kinds: Sequence[str], start: int) -> list[Fields]:
    return [
        one for one in events
        if one.get("event") in kinds and number(one.get("step")) is not None and one["step"] >= start
    ]  # fmt: skip


def _happened(event: Fields) -> str:
    """What the run tells of it, without what stands beside it already."""
    if event.get("event") == "decision":
        return f"wanted {count(event.get('asked'), 'peer')}; {text_of(event, 'done')}"
    if event.get("event") == "called":
        wanted = event.get("asked")
        return "called" + (f"; it wanted {count(wanted, 'peer')}" if number(wanted) is not None else "")
    said = sentence({**event, "saw": {}} if mapping_of(event, "saw") else event)
    return said.partition(": ")[2] or said


def _collapsed(rows: Iterable[Row]) -> Iterator[Row]:
    """A rule that asks for the same again and again, while the run did nothing about it, stands once."""
    open_rows: dict[str, int] = {}
    kept: list[Row] = []
    for row in rows:
        before = open_rows.get(row.rule)
        if before is not None and not row.run and not kept[before].run and _same(row, kept[before]):
            kept[before] = replace(kept[before], times=kept[before].times + 1, last=row.step)
            continue
        kept.append(row)
        if row.replayed:
            open_rows[row.rule] = len(kept) - 1
    yield from kept


def _same(one: Row, other: Row) -> bool:
    """Asked for alike, whatever was seen."""
    return one.replayed.partition(" (")[0] == other.replayed.partition(" (")[0]
