"""What happened in a run, as items of its page, in the words of ``kungfu why``.

Each item is an object of plain values with an ``id``, which grows with time, and a ``kind``. An item changes when more
is known: a decision gets its outcome, and a setting that one rule changes again and again stays one item. Of each kind
only the newest ones are kept, so that the page of a week is not longer than a person reads.

| kind | what, beside ``time``, ``step``, ``headline`` and ``details`` |
| --- | --- |
| ``decision`` | ``rule``, the values that it ``saw``, what it ``asked`` for (a ``size``), ``state`` and ``outcome`` |
| ``change`` | of the membership: ``cause``, sizes ``before`` and ``after``, ``stop_s`` and its ``parts`` |
| ``failure`` | what went wrong |
| ``request`` | from outside: its ``request_id``, ``state`` and ``reason`` |
| ``setting``, ``checkpoint``, ``event`` | the rest |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kungfu.cli.report.changes import MembershipChange, phase_of
from kungfu.cli.report.decisions import asked, contest, passed_over, requested_by_hook
from kungfu.cli.report.narrative import is_told, paragraph
from kungfu.cli.report.values import counted, duration, figure, label
from kungfu.event_log.events import (
    CalledEvent,
    CheckpointEvent,
    DecisionEvent,
    DissentEvent,
    FailedEvent,
    GapEvent,
    HeldEvent,
    HostLostEvent,
    LateEvent,
    LoggedEvent,
    LostEvent,
    MissingEvent,
    NotFiniteEvent,
    PeerEndedEvent,
    ProgramEndedEvent,
    RecoveredEvent,
    RefusedEvent,
    RequestEvent,
    RescaleEvent,
    RuleEvent,
    SetEvent,
    SettingRun,
    ShadowEvent,
    SupersededEvent,
    UndefinedEvent,
    joined_to_run,
)
from kungfu.event_log.job import Job, JobDecision

Item = dict[str, Any]

# That are kept of each kind.
MOST_ITEMS = 150
_FAILURES = (
    DissentEvent, FailedEvent, GapEvent, HostLostEvent, LateEvent, LostEvent, MissingEvent, NotFiniteEvent,
    PeerEndedEvent, ProgramEndedEvent, UndefinedEvent,
)  # fmt: skip
_HIDDEN = ("size", "target")  # of what a rule saw: what it asked for stands beside it


class DecisionFeed:
    """Takes the events of a run in their order, and keeps the newest items of each kind."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, Item]] = {}
        self._changed: dict[int, Item] = {}
        self._next = 0
        self._runs: dict[tuple[str, str], tuple[int, SetEvent | SettingRun | None]] = {}

    def add(self, event: LoggedEvent, job: Job) -> None:
        """Adds an event, after which the job is `job`; one that another event tells better has no item."""
        closed = [one for one in job.decisions if one.outcome is event]
        for decision in closed:
            self._close(decision)
        if closed and isinstance(event, SupersededEvent):
            return
        if isinstance(event, SetEvent) and event.what != "stop":
            number, run = self._runs.get((event.rule, event.what)) or (self._new_id(), None)
            run = joined_to_run(run, event)
            self._runs[event.rule, event.what] = number, run
            self._put(number, _told("setting", event, run))
            return
        if not isinstance(event, FailedEvent) and not is_told(event, expected=_expected(event, job)):
            return
        self._runs.clear()
        for made in _items(event):
            self._put(self._new_id(), made)

    def taken(self) -> list[Item]:
        """The items that are new or have changed since the last call, by id."""
        changed, self._changed = self._changed, {}
        return [changed[number] for number in sorted(changed)]

    def all(self) -> list[Item]:
        """All items that are kept, by id."""
        found = {number: item for kept in self._kept.values() for number, item in kept.items()}
        return [found[number] for number in sorted(found)]

    def _put(self, number: int, item: Item) -> None:
        kept = self._kept.setdefault(item["kind"], {})
        kept[number] = self._changed[number] = {"id": number, **item}
        if len(kept) > MOST_ITEMS:
            oldest = next(iter(kept))
            del kept[oldest]
            self._changed.pop(oldest, None)

    def _new_id(self) -> int:
        self._next += 1
        return self._next

    def _close(self, decision: JobDecision) -> None:
        """Gives the item of a decision its outcome, if it is kept."""
        event = decision.event
        for number, item in reversed(self._kept.get("decision", {}).items()):
            if (item["rule"], item["step"], item["state"]) == (event.rule, event.step, "decided"):
                state, outcome = _outcome(decision)
                self._put(number, {**item, "state": state, "outcome": outcome})
                return


def _outcome(decision: JobDecision) -> tuple[str, str]:
    """The state of a decision, and the words for what came of it."""
    match decision.outcome:
        case RescaleEvent() as event:
            done = f"{counted(event.after, 'peer')} after step {figure(event.step)}; training stood still for "
            return "carried out", done + duration(event.stop_s)
        case RefusedEvent() as event:
            return "refused", f"refused: {event.reason}"
        case SupersededEvent() as event:
            return "superseded", passed_over(event)
    # It found the job as it wanted it.
    return "decided" if decision.is_open else "carried out", decision.event.done


def _expected(event: LoggedEvent, job: Job) -> set[int]:
    """The peer that an event tells of, if its end was told before."""
    peer = job.peers.get(event.peer) if isinstance(event, PeerEndedEvent) else None
    return {peer.id} if peer is not None and (peer.is_dismissed or peer.is_lost) else set()


def _told(kind: str, event: LoggedEvent, told: LoggedEvent | SettingRun | None = None) -> Item:
    """An item with the words of ``kungfu why``."""
    words = paragraph(told or event, None)
    return {
        "kind": kind,
        "time": event.time,
        "step": getattr(event, "step", None),
        "headline": words.headline,
        "details": [*words.details],
    }


def _items(event: LoggedEvent) -> Iterator[Item]:
    """The items of an event that is told."""
    match event:
        case DecisionEvent() | SupersededEvent() | CalledEvent():
            yield from _decision(event)
        case RescaleEvent() | RecoveredEvent():
            yield {**_told("change", event), **_change(event)}
        case RequestEvent():
            more: Item = {"request_id": event.id, "state": event.state, "reason": event.reason}
            yield {**_told("request", event), **more}
        case CheckpointEvent():
            more = {"path": event.path, "stop_s": event.stop_s, "error": event.error}
            yield {**_told("failure" if event.error else "checkpoint", event), **more}
        case ShadowEvent() | HeldEvent() | SetEvent():
            yield _told("setting", event)
        case _:
            yield _told("failure" if isinstance(event, _FAILURES) else "event", event)


# ---- decisions -------------------------------------------------------------------------------------------------------


def _decision(event: DecisionEvent | SupersededEvent | CalledEvent) -> Iterator[Item]:
    told = {**_told("decision", event), "rule": event.rule, "saw": _saw(event)}
    match event:
        case DecisionEvent():
            state, outcome = _outcome(JobDecision(event))
            more: Item = {"asked": asked(event), "size": event.asked, "contest": contest(event), "state": state,
                          "outcome": outcome}  # fmt: skip
        case SupersededEvent():
            more = {
                "asked": event.what or counted(event.asked, "peer"),
                "state": "superseded",
                "outcome": passed_over(event),
            }
        case CalledEvent():
            # A hook is called again and again, and mostly asks for nothing.
            if event.asked is None and not event.also and not event.ignored:
                return
            more = {"asked": requested_by_hook(event), "state": "called", "outcome": event.ignored}
    yield {**told, **more}


def _saw(event: RuleEvent) -> list[list[str]]:
    return [[label(name), figure(value)] for name, value in event.saw.items() if name not in _HIDDEN]


# ---- changes of the membership ---------------------------------------------------------------------------------------


def _change(event: MembershipChange) -> Mapping[str, Any]:
    lost = isinstance(event, RecoveredEvent)
    cause = (
        f"loss of {counted(len(event.lost), 'peer')}"
        if isinstance(event, RecoveredEvent)
        else event.rule or "in place of lost peers"
    )
    return {
        "cause": cause,
        "before": event.before,
        "after": event.after,
        "is_loss": lost,
        "stop_s": event.stop_s,
        "batch": event.global_batch_size,
        "parts": [
            {"name": label(name.removesuffix("_s")), "seconds": took, "phase": phase_of(name)}
            for name, took in event.parts.items()
        ],
    }
