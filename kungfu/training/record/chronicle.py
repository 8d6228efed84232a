"""What a peer tells the job's journal: every decision with what it saw, every rescale with its parts, every step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kungfu.runtime.api import BarrierResult, RescaleRequest, SettingChange, Superseded, Told
from kungfu.training.record.done import done_of
from kungfu.training.record.pace import Stop
from kungfu.training.record.span import span_of
from kungfu.training.requests import Fired

__all__ = ["Chronicle"]

# Of a loss that is no number by turns.
_QUIET_STEPS = 100

# The line of a step may be made later, in another thread: it is given as a function.
Record = Callable[[str, Told], None]


class Chronicle:
    """Only rank 0 writes, so the journal holds one story; the others remember the same, should they become rank 0."""

    def __init__(self, record: Record, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._record, self._clock = record, clock
        self._under_way: RescaleRequest | None = None
        self._rescale: dict[str, Any] | None = None
        self._leading = False
        self._stop: Callable[[], Stop]
        self._not_finite: int | None = None  # the first of the last steps whose loss is no number
        self._is_told, self._quiet_until = False, 0

    @property
    def has_news(self) -> bool:
        """A rescale waits for the first step after it."""
        return self._rescale is not None

    def joined(self, passage: BarrierResult) -> None:
        """This peer is in the job."""
        self._leading = passage.after.rank == 0

    def called(self, rule: str, *, step: int, saw: Mapping[str, float], asked: int | None, ignored: str = "") -> None:
        """A hook was called; ``ignored`` says why what it asked for is passed over, where it is."""
        if self._leading:
            told = {"event": "called", "step": step, "rule": rule, "saw": saw, "asked": asked}
            self._record("events", {**told, "ignored": ignored} if ignored else told)

    def set(self, settings: Sequence[SettingChange]) -> None:
        """The leader's barrier changes other settings than the size."""
        for setting in settings:
            self._record(
                "events",
                {
                    "event": "set",
                    "step": setting.step,
                    "rule": setting.rule,
                    "saw": setting.saw,
                    "what": setting.kind.replace("_", " "),
                    "to": None if setting.kind == "stop" else setting.value,
                    "over": setting.over,
                    "unit": setting.unit,
                },
            )

    def shadowed(self, fired: Sequence[Fired]) -> None:
        """What rules in the shadow would have asked for, and what rules ask for that the job's budget holds back."""
        for one in fired:
            self._record("events", _told(one) | {"event": "held" if one.standing == "held" else "shadow"})

    def superseded(self, superseded: Sequence[Superseded]) -> None:
        """Wishes that came to nothing since another one came before them, or after them."""
        for one in superseded if self._leading else ():
            wish = one.wish
            told = {"step": wish.step, "rule": wish.rule, "saw": wish.saw, "asked": wish.size, "by": one.by}
            self._record("events", {"event": "superseded", **told, **_named(wish)})

    def passed(self, passage: BarrierResult, *, step: int, stop_s: float) -> None:
        """A barrier was held after ``step``; it stopped this peer for ``stop_s`` seconds."""
        before, after = passage.before, passage.after
        assert before is not None
        if passage.wish is not None:
            if self._leading:
                self.superseded(self._no_longer(passage, passage.wish))
                for wish in passage.wish.parts:
                    self._decided(passage, wish)
            self._under_way = passage.wish
        if after.view.version != before.view.version:
            self.ended()  # of the change before, if this one comes in its first step: who led then may leave now
        self._leading = after.rank == 0
        if after.view.version == before.view.version:
            self._stayed(passage)
            return
        ended, now = self._under_way, self._clock()
        parts = {f"{name}_s": round(seconds, 6) for name, seconds in self._parts(passage).items()}
        self._rescale = {
            "event": "rescale",
            "step": step,
            "rule": _rules_of(ended) if ended else "",
            "decided_at": ended.step if ended else None,
            "from": before.view.size,
            "to": after.view.size,
            "view": after.view.version,
            "joined": [peer for peer in after.view.ids if peer not in before.view.ids],
            "left": [peer for peer in before.view.ids if peer not in after.view.ids],
            "global_batch_size": after.terms.global_batch_size,
            "stop_s": round(stop_s, 6),
            "parts": {**parts, "_since": now},
        }

    def spanned(self, what: str, passage: BarrierResult, *, step: int, total_s: float) -> None:
        """Every peer's: how long a change of the membership took it, part by part."""
        before, after = passage.before, passage.after
        if before is None:
            assert after.rank is not None
            peer = after.view.ids[after.rank]
        else:
            assert before.rank is not None
            peer = before.view.ids[before.rank]
        place = {"peer": peer, "view": after.view.version, "step": step}
        self._record("events", {"event": "span", "what": what, **place, **span_of(passage.parts, total_s=total_s)})

    def recovered(self, passage: BarrierResult, *, step: int, redone: int, stop: Callable[[], Stop]) -> None:
        """Peers were lost, and those who live have gone on from ``step``; ``redone`` steps of this peer are undone.

        ``stop`` tells what it cost: so far, and once the next step has ended, with that step.
        """
        before, after, survived = passage.before, passage.after, passage.survived
        assert before is not None
        assert survived is not None
        self._leading = after.rank == 0
        self.ended()  # a change of the membership that no step came after
        if self._under_way is not None and before.terms.leaving:
            exchanges = [one for one in self._under_way.parts if one.leave and one.leave.when == "replaced"]
            self.superseded([Superseded(one, "the loss of peers") for one in exchanges])
        self._under_way = None  # who comes next comes for those that were lost
        self._rescale = {
            "event": "recovered",
            "step": step,
            "from": before.view.size,
            "to": after.view.size,
            "view": after.view.version,
            "lost": {str(peer): how for peer, how in survived.lost.items()},
            "noticed_by": survived.error,
            "state_of": after.view.peers[survived.source].id,
            "redone": redone,
            "target": after.terms.target_size,
            "global_batch_size": after.terms.global_batch_size,
            **_stopped(stop()),
            "parts": {f"{name}_s": round(seconds, 6) for name, seconds in self._parts(passage).items()},
        }
        self._stop = stop

    def stepped(self, figures: Callable[[], Mapping[str, Any]]) -> None:
        """A step is done; ``figures`` gives its own, and what the monitors showed, when the line is made."""
        if self._rescale is not None:
            self._told_rescale(self._rescale)
        if self._leading:
            self._record("metrics", partial(_metrics, time.time(), figures))

    def measured(self, loss: float, *, step: int) -> None:
        """The agreed loss of a step: that it is no number is told when that begins and when it ends.

        One that comes and goes is told at most once in a hundred steps.
        """
        since, is_finite = self._not_finite, loss - loss == 0.0
        if is_finite and since is None:
            return
        if is_finite:
            if self._is_told:
                self._tell_loss("finite again", step, {"step": step, "since": since})
            self._not_finite, self._is_told = None, False
            return
        self._not_finite = since = step if since is None else since
        if not self._is_told and step >= self._quiet_until:
            self._is_told = True
            self._tell_loss("not finite", step, {"step": since, "value": loss})

    def _tell_loss(self, event: str, step: int, fields: Mapping[str, Any]) -> None:
        self._quiet_until = step + _QUIET_STEPS
        if self._leading:
            self._record("events", {"event": event, "what": "loss", **fields})

    def ended(self) -> None:
        """A change of the membership is told; without its first step where none came, as behind the last one."""
        rescale, self._rescale = self._rescale, None
        if rescale is not None and self._leading:
            rescale["parts"].pop("_since", None)
            rescale.pop("_began", None)
            self._record("events", rescale)

    def _told_rescale(self, rescale: dict[str, Any]) -> None:
        """The barrier ended the step that held it: the first step of the new view is the one after that."""
        if rescale["event"] == "recovered":
            stop = self._stop()
            rescale |= _stopped(stop)
            rescale["parts"]["first_step_s"] = round(stop.first_step_s or 0.0, 6)
            self.ended()
            return
        since = rescale["parts"].pop("_since", None)
        if since is not None:
            rescale["_began"] = since
            return
        rescale["parts"]["first_step_s"] = round(self._clock() - rescale["_began"], 6)
        self.ended()

    def _parts(self, passage: BarrierResult) -> dict[str, float]:
        prepared = dict(passage.prepared.parts) if passage.prepared else {}
        return {**prepared, **{name: seconds for name, seconds in passage.parts.items() if "/" not in name}}

    def _no_longer(self, passage: BarrierResult, newer: RescaleRequest) -> list[Superseded]:
        """What was under way before this barrier, where the wish that it followed put something else in its place."""
        before, after, older = passage.before, passage.after.terms, self._under_way
        assert before is not None
        if older is None or not before.terms.target_size:
            return []
        stays = {*before.terms.leaving} & {*passage.after.view.ids} <= {*after.leaving}
        if stays and before.terms.target_size in (after.target_size, passage.after.view.size):
            return []
        return [Superseded(one, newer.rule) for one in older.parts]

    def _decided(self, passage: BarrierResult, wish: RescaleRequest) -> None:
        assert passage.before is not None
        self._record(
            "events",
            {
                "event": "decision",
                "step": wish.step,
                "rule": wish.rule,
                "saw": wish.saw,
                "size": passage.before.view.size,
                "asked": wish.size,
                "done": done_of(passage, wish),
                **_named(wish),
            },
        )

    def _stayed(self, passage: BarrierResult) -> None:
        """Peers that were awaited did not come, or not all: the run goes on without them, and says so."""
        if self._leading and passage.prepared is not None and passage.prepared.missing:
            assert passage.before is not None
            self._record(
                "events",
                {
                    "event": "refused",
                    "rule": _rules_of(self._under_way) if self._under_way else "",
                    "asked": passage.after.terms.refused_size or (self._under_way.size if self._under_way else 0),
                    "size": passage.after.view.size,
                    "reason": passage.prepared.reason,
                },
            )


def _stopped(stop: Stop) -> dict[str, float]:
    """For how long training stood still, from step to step, and where that time went."""
    seconds = {"noticed_s": stop.noticed_s, "regrouped_s": stop.regrouped_s, "step_s": stop.step_s}
    return {"stop_s": round(stop.seconds, 6), **{name: round(value, 6) for name, value in seconds.items()}}


def _rules_of(wish: RescaleRequest) -> str:
    """The rules that a change follows from."""
    return " and ".join(one.rule for one in wish.parts)


def _named(wish: RescaleRequest) -> dict[str, Any]:
    """Who was named, and whose wish won and lost, where that says something."""
    named: dict[str, Any] = {}
    if wish.contest.won or wish.contest.lost:
        named |= {"won": wish.contest.won, "lost": wish.contest.lost}
    if wish.leave is not None:
        named |= {"peers": wish.leave.peers, "when": wish.leave.when}
    return named


def _metrics(now: float, figures: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    return {"time": round(now, 6), **figures()}


def _told(fired: Fired) -> dict[str, Any]:
    """A rule that fired, as an event tells it."""
    asked = None if math.isnan(fired.value) else fired.value
    action = type(fired.action).__name__
    return {
        "step": fired.step,
        "rule": fired.rule,
        "saw": fired.saw,
        "action": action,
        "asked": asked,
        "ranks": fired.ranks,
    }
