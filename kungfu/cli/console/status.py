"""The state of a run as one status shows it: a value, and what each event and measurement makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kungfu.cli.report.values import UNKNOWN, count, duration, figure, label, not_finite
from kungfu.event_log.events import (
    DecisionEvent,
    LoggedEvent,
    RecoveredEvent,
    RefusedEvent,
    RescaleEvent,
    StartedEvent,
    ViewEvent,
)

__all__ = ["Status", "after_event", "after_step", "decision_words", "status_words"]

Fields = Mapping[str, Any]
# Fields of a step that are shown in a fixed place, or not at all; every other one is a monitor of the policy.
_OWN = ("time", "step", "epoch", "size", "batch", "loss", "samples_per_s")


@dataclass(frozen=True)
class Status:
    """``phase``: what goes on besides steps; ``decision``: the last one, in words; ``step``: the last one's figures.

    ``since`` is the first of the steps in a row, up to the last one, whose loss is no number.
    """

    phase: str = "starting"
    decision: str = "none yet"
    step: Fields = field(default_factory=dict)
    since: object = None


def after_event(status: Status, event: LoggedEvent) -> Status:
    """The status once `event` has happened."""
    match event:
        case StartedEvent():
            return replace(status, phase=f"{count(event.size, 'peer')} getting ready")
        case ViewEvent():
            return replace(status, phase="training")
        case DecisionEvent():
            asked = f"{figure(event.size)} -> {count(event.asked, 'peer')}"
            return replace(status, decision=f"step {figure(event.step)}, {event.rule}: {asked}, under way")
        case RescaleEvent():
            return replace(status, decision=f"step {figure(event.step)}, {event.rule}: {_came(event)}")
        case RecoveredEvent():
            lost = count(len(event.lost), "peer")
            return replace(status, decision=f"step {figure(event.step)}, after the loss of {lost}: {_came(event)}")
        case RefusedEvent():
            return replace(status, decision=f"{event.rule or UNKNOWN}: {count(event.asked, 'peer')} refused")
    return status


def _came(event: RescaleEvent | RecoveredEvent) -> str:
    sizes = f"{figure(event.before)} -> {count(event.after, 'peer')}"
    return f"{sizes}, stood still for {duration(event.stop_s)}"


def after_step(status: Status, figures: Fields) -> Status:
    """The status once a step was measured. A speed that this step does not know stays the last one that was known."""
    speed = figures.get("samples_per_s")
    kept = status.step.get("samples_per_s") if speed is None else speed
    since = (status.since or figures.get("step")) if not_finite(figures.get("loss")) else None
    return replace(status, step={**figures, "samples_per_s": kept}, since=since)


def status_words(status: Status) -> tuple[tuple[str, str], ...]:
    """What there is to show, as pairs of a name and its value; ``-`` for what is not known.

    >>> status_words(Status(step={"step": 7, "size": 2, "batch": 32, "loss": None, "samples_per_s": 690.1}))[:2]
    (('step', '7'), ('samples/s', '690'))
    """
    step = status.step
    monitors = {"noise_scale": None, **{name: value for name, value in step.items() if name not in _OWN}}
    return (
        ("step", figure(step.get("step"))),
        ("samples/s", figure(step.get("samples_per_s"))),
        ("peers", figure(step.get("size"))),
        ("batch", figure(step.get("batch"))),
        ("loss", figure(step.get("loss")) + (f" since step {figure(status.since)}" if status.since else "")),
        *((label(str(name)), figure(value)) for name, value in monitors.items()),
    )


def decision_words(status: Status) -> str:
    """The last decision."""
    return f"last decision: {status.decision}"
