"""The events of a run as items of its page, in the words of ``kungfu why``.

Each item is an object of plain values with a ``kind`` and an ``id``, which increases with time. An item changes with
new events: a decision gets its outcome, and repeated settings by one rule stay one item. Only the newest items of each
kind are kept, so that the page of a long run stays readable.

| kind | keys, in addition to ``time``, ``step``, ``headline`` and ``details`` |
| --- | --- |
| ``decision`` | ``rule``, its inputs ``saw``, the request ``asked`` and its ``size``, ``state`` and ``outcome`` |
| ``change`` of membership | ``cause``, ``is_loss``, sizes ``before``, ``after``, ``stop_s``, ``batch``, ``parts`` |
| ``request`` of a user or a scheduler | ``request_id``, ``state`` and ``reason`` |
| ``checkpoint`` | ``path``, ``stop_s`` and ``error``; a failed checkpoint is a ``failure`` with the same keys |
| ``failure``, ``setting``, ``event`` | none |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kungfu.cli.report.narrative import is_ended
from kungfu.event_log import events
from kungfu.event_log.job import Job, JobDecision
from kungfu.event_log.logged_event import Topic
from kungfu.event_log.values import figure, label

Item = dict[str, Any]

# The number of items that are kept of each kind.
MOST_ITEMS = 150
_KINDS: Mapping[Topic, str] = {
    **dict.fromkeys(("decision", "call", "superseded"), "decision"),
    **dict.fromkeys(("rescale", "recovery"), "change"),
    **dict.fromkeys(("setting", "shadow", "held back"), "setting"),
    **dict.fromkeys(("loss", "trouble"), "failure"),
    "request": "request",
    "checkpoint": "checkpoint",
}
_HIDDEN = ("size", "target")  # inputs of a rule that repeat its request


class DecisionFeed:
    """The newest items of each kind, built from the events of a run in their order."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, Item]] = {}
        self._changed: dict[int, Item] = {}
        self._next = 0
        self._runs: dict[tuple[str, str], tuple[int, events.SetEvent | events.SettingRun | None]] = {}

    def add(self, event: events.LoggedEvent, job: Job) -> None:
        """Adds an item for an event, unless another event's item covers the event; `job` is the job after the event."""
        closed = [one for one in job.decisions if one.outcome is event]
        for decision in closed:
            self._close(decision)
        if closed and event.topic == "superseded":
            return
        if isinstance(event, events.SetEvent) and event.what != "stop":
            number, run = self._runs.get((event.rule, event.what)) or (self._new_id(), None)
            run = events.joined_to_run(run, event)
            self._runs[event.rule, event.what] = number, run
            self._put(number, _item("setting", event, run))
            return
        gone = {peer for peer, one in job.peers.items() if one.is_dismissed or one.is_lost}
        item = _item(_KINDS.get(event.topic, "event"), event)
        if not item["headline"] or is_ended(event, gone):
            return
        self._runs.clear()
        more: Item | None = _MORE[item["kind"]](event) if item["kind"] in _MORE else {}
        if more is not None:
            self._put(self._new_id(), {**item, **more})

    def changed(self) -> list[Item]:
        """The new and changed items since the last call, by id."""
        changed, self._changed = self._changed, {}
        return [changed[number] for number in sorted(changed)]

    def all(self) -> list[Item]:
        """All kept items, by id."""
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
        """Sets the outcome of a decision's item, if the item is kept."""
        event = decision.event
        for number, item in reversed(self._kept.get("decision", {}).items()):
            if (item["rule"], item["step"], item["state"]) == (event.rule, event.step, "decided"):
                state, outcome = decision.result()
                self._put(number, {**item, "state": state, "outcome": outcome})
                return


def _item(kind: str, event: events.LoggedEvent, run: events.SetEvent | events.SettingRun | None = None) -> Item:
    """An item worded as in ``kungfu why``; the text of a repeated setting covers all of its changes."""
    words, step = run or event, getattr(event, "step", None)
    text = {"headline": words.headline(), "details": [*words.details()]}
    return {"kind": kind, "time": event.time, "step": step, **text}


def _decision(event: events.DecisionEvent | events.SupersededEvent | events.CalledEvent) -> Item | None:
    # A hook is called again and again, and rarely requests anything.
    if isinstance(event, events.CalledEvent) and event.asked is None and not event.also and not event.ignored:
        return None
    saw = [[label(name), figure(value)] for name, value in event.saw.items() if name not in _HIDDEN]
    more = {"size": event.asked, "contest": event.contest()} if isinstance(event, events.DecisionEvent) else {}
    state, outcome = event.outcome()
    return {"rule": event.rule, "saw": saw, "asked": event.requested(), **more, "state": state, "outcome": outcome}


def _change(event: events.MembershipChange) -> Item:
    return {
        "cause": event.cause(),
        "before": event.before,
        "after": event.after,
        "is_loss": event.topic == "recovery",
        "stop_s": event.stop_s,
        "batch": event.global_batch_size,
        "parts": [
            {"name": label(name.removesuffix("_s")), "seconds": took, "phase": events.phase_of(name)}
            for name, took in event.parts.items()
        ],
    }


# The keys that are specific to a kind of item; an event for which the function returns None gets no item.
_MORE: Mapping[str, Callable[[Any], Item | None]] = {
    "decision": _decision,
    "change": _change,
    "request": lambda event: {"request_id": event.id, "state": event.state, "reason": event.reason},
    "checkpoint": lambda event: {
        "kind": "failure" if event.error else "checkpoint", "path": event.path, "stop_s": event.stop_s,
        "error": event.error,
    },
}  # fmt: skip
