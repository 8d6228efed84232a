"""The timeline of a replay, with each decision of the replay next to that of the run, and its picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kungfu.cli.png import BLUE, GREY, RED, blank_figure, integer_ticks, write_png
from kungfu.compiler import FiredRule
from kungfu.control import (
    Call,
    Checkpoint,
    Evict,
    Replace,
    Rescale,
    Restore,
    ScaleLearningRate,
    SetGlobalBatchSize,
    SetLearningRate,
    SetVariable,
    Synchronise,
)
from kungfu.control.action import Action
from kungfu.event_log.events import (
    CalledEvent,
    CheckpointEvent,
    DecisionEvent,
    HeldEvent,
    LoggedEvent,
    RescaleEvent,
    RestoredEvent,
    RuleEvent,
    SetEvent,
    ShadowEvent,
    SupersededEvent,
)
from kungfu.event_log.rule_events import reasons
from kungfu.event_log.values import counted, figure
from kungfu.trace import Trace

# The events that a rule causes; each records the step in which the rule fired.
OF_RULES = (DecisionEvent, CalledEvent, SetEvent, RestoredEvent, ShadowEvent, HeldEvent, SupersededEvent)


@dataclass(frozen=True)
class TimelineRow:
    """One line of the timeline.

    Attributes:
        step: The step after which the decision, change or checkpoint happened.
        rule: The rule; empty for a change of the membership or a checkpoint.
        replayed: The request of the rule in the replay; empty if the rule does not fire after the step.
        run: The decision in the run; empty if there was none.
        times: The number of consecutive equal decisions of the rule.
        last: The last step with an equal decision.
    """

    step: int
    rule: str
    replayed: str
    run: str
    times: int = 1
    last: int = 0

    @property
    def request(self) -> str:
        """The request in the replay, without the values from which the rule computed it."""
        return self.replayed.partition(" (")[0]


def timeline(decisions: Sequence[FiredRule], events: Sequence[LoggedEvent], *, start: int = 0) -> list[TimelineRow]:
    """The decisions of a replay and the events of the run, by step; repeated decisions of a rule are one row."""
    by_rule: dict[tuple[int, str], list[RuleEvent]] = {}
    changes = (one for one in events if isinstance(one, RescaleEvent | CheckpointEvent))
    rows = [TimelineRow(one.step, "", "", _happened(one)) for one in changes if one.step >= start]
    for event in events:
        if isinstance(event, OF_RULES) and event.step >= start:
            by_rule.setdefault((event.step, event.rule), []).append(event)
    # A decision of the replay is paired with the run's events of the same rule and step.
    for one in decisions:
        matched = by_rule.pop((one.step, one.rule), [])
        rows.append(TimelineRow(one.step, one.rule, replayed_in_words(one), "; ".join(map(_happened, matched))))
    # The remaining events happened only in the run.
    rows += [TimelineRow(step, rule, "", _happened(event)) for (step, rule), left in by_rule.items() for event in left]
    return _collapsed(sorted(rows, key=lambda row: row.step))


def replayed_in_words(decision: FiredRule) -> str:
    """Describes the request of a rule in the replay, with the rule's inputs."""
    shadow = {"shadow": "in the shadow, it ", "held": "held back, it "}.get(decision.mode, "")
    saw = reasons(decision.inputs)
    return f"{shadow}{_asked(decision)}" + (f" ({saw})" if saw else "")


def action_of(action: Action) -> str:
    """The name of the method by which a policy requests an action.

    >>> from kungfu.control import Stop
    >>> action_of(Stop())
    'stop'
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(action).__name__).lower()


def _asked(decision: FiredRule) -> str:
    ranks = " and ".join(map(str, decision.ranks))
    match decision.action:
        case Rescale():
            batch, rate = (decision.inputs.get(name) for name in ("target_batch", "target_rate"))
            beside = [] if batch is None else [f"a batch of {counted(batch, 'sample')}"]
            beside += [] if rate is None else [f"a learning rate of {figure(rate)}"]
            return f"wants {counted(decision.value, 'peer')}" + (f" with {' and '.join(beside)}" if beside else "")
        case SetGlobalBatchSize():
            return f"wants a batch of {counted(decision.value, 'sample')}"
        case SetLearningRate():
            return f"wants a learning rate of {figure(decision.value)}"
        case ScaleLearningRate():
            return f"moves the learning rate (times {figure(decision.value)})"  # each step: one row for many
        case Synchronise():
            return f"wants an average of models every {counted(decision.value, 'step')}"
        case SetVariable(name=name):
            return f"wants {name} to be {figure(decision.value)}"
        case Evict():
            return f"evicts rank {ranks}"
        case Replace():
            return f"replaces rank {ranks}"
        case Call():
            return "calls its function"
        case Checkpoint(name):
            return f"wants a checkpoint {name}".rstrip()
        case Restore(name):
            return f"wants the checkpoint {name} restored"
    return "ends training"


def _happened(event: LoggedEvent) -> str:
    """Describes an event of the run without the rule's inputs, which the same row shows with the replayed request."""
    if isinstance(event, DecisionEvent):
        return f"wanted {counted(event.asked, 'peer')}; {event.done}"
    if isinstance(event, CalledEvent):
        asked = [] if event.asked is None else [counted(event.asked, "peer")]
        return "called" + (f"; it wanted {', '.join([*asked, *event.also])}" if asked or event.also else "")
    said = event.headline() if isinstance(event, RuleEvent) else event.one_line()
    return said.partition(": ")[2] or said


def _collapsed(rows: Iterable[TimelineRow]) -> list[TimelineRow]:
    """Joins consecutive rows with equal requests of a rule; rows that show a decision of the run stay separate."""
    newest: dict[str, int] = {}  # by rule, the index of its newest request
    kept: list[TimelineRow] = []
    for row in rows:
        at = newest.get(row.rule)
        if at is not None and row.request == kept[at].request and not (row.run or kept[at].run):
            kept[at] = replace(kept[at], times=kept[at].times + 1, last=row.step)
            continue
        if row.replayed:
            newest[row.rule] = len(kept)
        kept.append(row)
    return kept


# ---- the picture ---------------------------------------------------------------------------------------------------


def draw_replay(trace: Trace, decisions: Sequence[FiredRule], rows: Sequence[TimelineRow], target: Path) -> Path:
    """Draws a replay as a PNG and returns its path; raises ``UsageError`` if `target` cannot be written."""
    canvas = blank_figure(9.0, 5.5)
    size, rules = canvas.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (2.0, 1.0)})
    _draw_size(size, trace, decisions)
    _draw_rules(rules, decisions, rows)
    for panel in (size, rules):
        panel.spines[["top", "right"]].set_visible(False)
    rules.set_xlabel("step")
    return write_png(canvas, target)


def _draw_size(panel: Any, trace: Trace, decisions: Sequence[FiredRule]) -> None:
    steps = trace.steps
    panel.step([one.step for one in steps], [one.size for one in steps], where="post", color=BLUE, label="run")
    wanted = [one for one in decisions if isinstance(one.action, Rescale)]
    panel.scatter(
        [one.step for one in wanted], [one.value for one in wanted],
        marker="D", s=30, facecolor="white", edgecolor=RED, zorder=3, label="asked for in the replay",
    )  # fmt: skip
    panel.set_ylim(0, 1.2 * max([1, *(one.size for one in steps), *(one.value for one in wanted)]))
    integer_ticks(panel.yaxis)
    panel.set_ylabel("size (peers)")
    panel.legend(loc="upper left", frameon=False, fontsize=9)


def _draw_rules(panel: Any, decisions: Sequence[FiredRule], rows: Sequence[TimelineRow]) -> None:
    ran = [row for row in rows if row.rule and row.run]
    names = list(dict.fromkeys([*(one.rule for one in decisions), *(row.rule for row in ran)]))
    panel.scatter(
        [one.step for one in decisions], [names.index(one.rule) for one in decisions],
        marker="D", s=30, facecolor="white", edgecolor=RED, label="in the replay",
    )  # fmt: skip
    at = [names.index(row.rule) for row in ran]
    panel.scatter([row.step for row in ran], at, marker="x", s=24, color=GREY, zorder=3, label="in the run")
    panel.set_yticks(range(len(names)), names, fontsize=9)
    panel.set_ylim(-0.6, max(len(names), 1) - 0.4)
    if names:
        panel.legend(loc="upper right", frameon=False, fontsize=9)
