"""Writes a peer's events to the journal: decisions with their inputs, rescales with the durations of parts, steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from kungfu.compiler.fired import FiredRule
from kungfu.event_log import events
from kungfu.rule_requests import HookAnswer
from kungfu.runtime.api import (
    Asked,
    BarrierResult,
    Leave,
    RecordEntry,
    Resize,
    RestoreCheckpoint,
    SetAverageInterval,
    SetBatch,
    SetNumber,
    SetRate,
    SetValue,
    meant_size,
    missed_settings,
    settings_with_size,
)
from kungfu.training.telemetry.decision_text import describe_decision
from kungfu.training.telemetry.step_timer import Downtime

# The minimum number of steps between two events about a loss that alternates between finite and non-finite.
_QUIET_STEPS = 100

# Receives the name of a stream and an entry, which is a function if another thread may format it later.
Record = Callable[[str, RecordEntry], None]


class EventLogWriter:
    """Writes the events of a run, and a line of metrics per step.

    Only rank 0 writes events that all peers know, so the journal contains each event once. The other peers remember
    these events until one of them becomes rank 0. A change of the membership is written after the first step of the new
    view, with the cost of the change.

    Args:
        deciding: The rules that may request another size, or other peers.
    """

    def __init__(
        self, record: Record, *, deciding: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._record, self._deciding, self._clock = record, tuple(deciding), clock
        self._under_way: tuple[Asked, ...] = ()
        self._stopped_by = ""  # the rule or command that ends training
        self._rescale: events.RescaleEvent | events.RecoveredEvent | None = None  # written with the first step after it
        self._entered, self._is_first_step = 0.0, False  # the start of the view; True during its first step
        self._leading = False
        self._stop: Callable[[], Downtime]
        self._not_finite: int | None = None  # the first of the last steps with a non-finite loss
        self._is_reported, self._quiet_until = False, 0

    @property
    def is_quiet(self) -> bool:
        """True if the next step has nothing but numbers to report, provided that its loss is finite."""
        return self._rescale is None and self._not_finite is None

    @property
    def has_news(self) -> bool:
        """True if a rescale waits to be reported with the first step after the rescale."""
        return self._rescale is not None

    def joined(self, result: BarrierResult, *, step: int) -> None:
        """Records that this peer has joined the job, after ``step`` steps."""
        self._leading = result.rank == 0
        if self._leading and self._deciding:
            self._record("events", events.RulesEvent(step=step + 1, rules=self._deciding))

    def called(self, fired: FiredRule, answer: HookAnswer) -> None:
        """Records that a rule called a hook, and the requests that the hook returned."""
        if self._leading:
            # A size is reported as such, unless other numbers come with it.
            also = tuple(str(one) for one in answer.requests if one.kind != "rescale" or one.has_settings)
            event = events.CalledEvent(
                step=fired.step, rule=fired.rule, saw=fired.inputs, asked=answer.asked, ignored=answer.ignored,
                also=also,
            )  # fmt: skip
            self._record("events", event)

    def set(self, settings: Sequence[Asked], *, step: int) -> None:
        """Records a change of settings other than the size, on the coordinator, by a barrier after `step` steps."""
        for setting in settings:
            to, over, unit = None, 0.0, "steps"
            match setting.what:
                case SetBatch(samples):
                    what, to = "global batch size", samples
                case SetRate(rate, over, unit):
                    what, to = "learning rate", rate
                case SetAverageInterval(every):
                    what, to = "averaging interval", every
                case SetNumber(name, value):
                    what, to = f"value of {name}", value
                case _:
                    what, self._stopped_by = "stop", setting.by
            # A batch or a rate that came with peers was requested long before; other requests, in the last two steps.
            is_late = step > setting.step + 1
            event = events.SetEvent(
                step=step if is_late else setting.step, rule=setting.by, saw=setting.inputs, what=what, to=to,
                over=over, unit=unit, decided_at=setting.step if is_late else None,
            )  # fmt: skip
            self._record("events", event)

    def shadowed(self, fired: Sequence[FiredRule]) -> None:
        """Records the requests of shadow rules, and of rules that a budget blocks."""
        for one in fired:
            self._record("events", _fired(one))

    def superseded(self, superseded: Sequence[Asked], *, later: int | None = None) -> None:
        """Records requests without effect: another request took precedence, or replaced them in step ``later``."""
        for request in superseded if self._leading else ():
            by = request.superseded_by
            # A hook that ends training may also have requested a size.
            is_asked_anew = later is None and by == request.by != self._stopped_by
            if is_asked_anew:
                # The barrier that first received the request failed, and the request's rule has fired again since.
                continue
            event = events.SupersededEvent(**_asked_fields(request), what=_setting(request), by=by, later=later)
            self._record("events", event)

    def held(self, result: BarrierResult) -> None:
        """Records the requests for another size that a person's hold has stopped, once for each rule and hook."""
        hold = result.after.terms.sizes.hold
        for request in result.after.held if self._leading else ():
            # A hold was in force, since it has stopped a request.
            assert hold is not None
            event = events.SupersededEvent(
                **_asked_fields(request), by="a person's hold", held=hold.size, until=hold.until
            )
            self._record("events", event)

    def passed(self, result: BarrierResult, *, step: int, stop_s: float) -> None:
        """Records a barrier after ``step``; the barrier stopped this peer for ``stop_s`` seconds."""
        before, after = result.before, result.after
        assert before is not None
        if result.after.requests or after.terms.stopped:
            # The coordinator of the view that decided reports the requests: the next view may have another coordinator.
            no_longer = self._no_longer(result)
            if self._leading:
                self.superseded(no_longer, later=result.after.requests[0].step if result.after.requests else step)
                for request in result.after.requests:
                    self._decided(result, request)
            self._under_way = (*self._standing(result, no_longer), *result.after.requests)
        # A second change before the first step after the previous change: writes the previous change, since the
        # coordinator may leave.
        if after.view.version != before.view.version:
            self.ended()
        # Some joiners may be missing; the coordinator that knows this may leave now.
        self._unmet(result)
        self._leading = result.rank == 0
        # The view does not change.
        if after.view.version == before.view.version:
            return
        # In a new view, the requests under way are carried out, except those whose joiners come later.
        ended = self._under_way
        if after.terms.target_size:
            ended = tuple(one for one in self._under_way if _is_carried_out(one, after.view.size)) or ended
            # Preempted peers have left, but replacements for them may still join.
            self._under_way = tuple(one for one in self._under_way if one not in ended or _when(one) == "noticed")
        self._rescale = events.RescaleEvent(
            step=step,
            rule=_rules_of(ended),
            decided_at=ended[0].step if ended else None,
            before=before.view.size,
            after=after.view.size,
            view=after.view.version,
            joined=tuple(peer for peer in after.view.ids if peer not in before.view.ids),
            left=tuple(peer for peer in before.view.ids if peer not in after.view.ids),
            global_batch_size=after.terms.global_batch_size,
            stop_s=round(stop_s, 6),
            parts=self._parts_s(result),
            base_global_batch_size=after.terms.base_batch,
            base_size=after.terms.base_size,
        )
        self._entered, self._is_first_step = self._clock(), False

    def spanned(self, what: str, result: BarrierResult, *, step: int, total_s: float) -> None:
        """Records, on every peer, the duration of a change of the membership, part by part."""
        version, parts = result.after.view.version, timing_tree(result.parts)
        span = events.SpanEvent(what=what, peer=result.peer, view=version, step=step, s=round(total_s, 6), parts=parts)
        self._record("events", span)

    def recovered(
        self,
        result: BarrierResult,
        *,
        step: int,
        redone: int,
        registered_before: int | None = None,
        lost_samples: int = 0,
        stop: Callable[[], Downtime],
    ) -> None:
        """Records that peers were lost, and that the survivors have continued.

        Args:
            result: The view of the survivors, and the peers that they lost.
            step: The number of steps done in the state from which the survivors continue.
            redone: The number of this peer's steps that the recovery undoes.
            stop: Returns the cost of the loss so far; once the next step has ended, the cost includes that step.
        """
        before, after, recovery = result.before, result.after, result.recovery
        assert before is not None
        assert recovery is not None
        self._leading = result.rank == 0
        self.ended()  # writes a change of the membership that no step followed
        # A change continues if joiners are still coming; the joiners of an exchange replace the lost peers instead.
        standing = self._under_way if before.terms.target_size else ()
        kept = [one for one in standing if after.terms.target_size and not _is_exchange(one)]
        ended = [one for one in standing if one not in kept]
        self.superseded([dataclasses.replace(one, superseded_by="the loss of peers") for one in ended], later=step)
        self._under_way = (*kept,)
        self._rescale = events.RecoveredEvent(
            step=step,
            before=before.view.size,
            after=after.view.size,
            view=after.view.version,
            lost={str(peer): how for peer, how in recovery.lost.items()},
            noticed_by=recovery.error,
            state_of=after.view.peers[recovery.source].id,
            redone=redone,
            registered_before=registered_before,
            lost_samples=lost_samples,
            target=after.terms.target_size,
            global_batch_size=after.terms.global_batch_size,
            **_stopped(stop()),
            parts=self._parts_s(result),
        )
        self._stop = stop

    def stepped(self, metrics: Callable[[], Mapping[str, Any]]) -> None:
        """Records a finished step; ``metrics`` returns the step's numbers and the monitors' values for the line."""
        if self._rescale is not None:
            self._complete_rescale(self._rescale)
        if self._leading:
            self._record("metrics", partial(metrics_line, time.time(), metrics))

    def measured(self, loss: float, *, step: int) -> None:
        """Reports that the mean loss of all peers has become non-finite, or has become finite again.

        A loss that alternates between finite and non-finite is reported at most once in a hundred steps.
        """
        since, is_finite = self._not_finite, loss - loss == 0.0
        # Finite, as in the step before: the usual case.
        if is_finite and since is None:
            return
        # Finite again; reported if the non-finite loss was reported.
        if is_finite:
            if self._is_reported and since is not None:
                self._report_loss(events.FiniteAgainEvent(what="loss", step=step, since=since), step)
            self._not_finite, self._is_reported = None, False
            return
        # Non-finite, since this step or an earlier one: reported once, and not too soon after the last report.
        self._not_finite = since = step if since is None else since
        if not self._is_reported and step >= self._quiet_until:
            self._is_reported = True
            self._report_loss(events.NotFiniteEvent(what="loss", step=since, value=loss), step)

    def _report_loss(self, event: events.NotFiniteEvent | events.FiniteAgainEvent, step: int) -> None:
        self._quiet_until = step + _QUIET_STEPS
        if self._leading:
            self._record("events", event)

    def ended(self) -> None:
        """Writes the waiting event of a change of membership; without a first step, the event lacks the step's cost."""
        rescale, self._rescale = self._rescale, None
        if rescale is not None and self._leading:
            self._record("events", rescale)

    def _complete_rescale(self, event: events.RescaleEvent | events.RecoveredEvent) -> None:
        """Handles the end of a step while a change of the membership waits for the first step after the change."""
        # After a loss, this step is the first one, and the cost of the loss ends with it.
        if isinstance(event, events.RecoveredEvent):
            stop = self._stop()
            parts = {**event.parts, "first_step_s": round(stop.first_step_s or 0.0, 6)}
            self._rescale = replace(event, **_stopped(stop), parts=parts)
        elif not self._is_first_step:
            # This step contained the barrier: the first step of the new view is the next one.
            self._is_first_step = True
            return
        else:  # the first step of the new view
            parts = {**event.parts, "first_step_s": round(self._clock() - self._entered, 6)}
            self._rescale = replace(event, parts=parts)
        self.ended()

    def _parts_s(self, result: BarrierResult) -> dict[str, float]:
        offered = result.offer.parts if result.offer else {}
        parts = {**offered, **{name: seconds for name, seconds in result.parts.items() if "/" not in name}}
        return {f"{name}_s": round(seconds, 6) for name, seconds in parts.items()}

    def _no_longer(self, result: BarrierResult) -> list[Asked]:
        """The requests of an unfinished change of membership that this barrier's requests replace."""
        before, after, older = result.before, result.after.terms, self._under_way
        assert before is not None
        # Nothing was under way, or it has ended.
        if not older or not before.terms.target_size:
            return []
        # The same peers should leave: their exchange continues.
        stays = {*before.terms.leaving} & {*result.after.view.ids} <= {*after.leaving}
        # The target size is the same, or smaller by the peers that leave: the change of the size continues.
        is_sized = any(isinstance(one.what, Resize) for one in result.after.requests)
        reached = before.terms.target_size in (after.target_size, result.after.view.size)
        reached = reached or (not is_sized and after.target_size > result.after.view.size)
        ended = (one for one in older if not (stays and (reached or _is_exchange(one))))
        by = self._stopped_by if after.stopped else result.after.requests[0].by
        return [dataclasses.replace(one, superseded_by=by) for one in ended]

    def _standing(self, result: BarrierResult, no_longer: Sequence[Asked]) -> list[Asked]:
        """The requests for an unfinished change of membership, without those that this barrier's requests replace."""
        assert result.before is not None
        if not result.before.terms.target_size:
            # The change has ended.
            return []
        is_sized = any(isinstance(one.what, Resize) for one in result.after.requests)
        gone = [dataclasses.replace(one, superseded_by="") for one in no_longer]
        return [one for one in self._under_way if one not in gone and not (is_sized and isinstance(one.what, Resize))]

    def _decided(self, result: BarrierResult, request: Asked) -> None:
        assert result.before is not None
        slow = result.after.slow if isinstance(request.what, Resize) else {}
        decision = events.DecisionEvent(
            **_asked_fields(request),
            size=result.before.view.size,
            done=describe_decision(result, request),
            slow={str(peer): round(speed, 4) for peer, speed in slow.items()},
            has_no_effect=_is_idle(result),
        )
        self._record("events", decision)

    def _unmet(self, result: BarrierResult) -> None:
        """Records once that some or all expected peers did not arrive; the run continues without these peers."""
        before, after, offer = result.before, result.after, result.offer
        # All peers have joined, or others are still expected.
        if not self._leading or after.terms.target_size:
            return
        assert before is not None
        dropped = missed_settings(before.terms, after.terms, size=meant_size(after.view, after.terms))
        if offer is None or not offer.missing:
            if dropped is not None and not after.requests:
                self._record("events", _dropped(dropped, after.view.size))
            return
        asked = after.terms.refused_size or before.terms.target_size or after.view.size
        stay = (peer for peer in before.terms.leaving if after.view.rank_of(peer) is not None)
        refused = events.RefusedEvent(
            rule=_rules_of(self._under_way),
            asked=asked,
            size=after.view.size,
            reason=offer.reason,
            peers=tuple(peer for peer in stay if peer not in after.terms.departing),
            settings="" if dropped is None else _settings_with(dropped),
            global_batch_size=after.terms.global_batch_size,
        )
        self._record("events", refused)


def _stopped(stop: Downtime) -> dict[str, float]:
    """The fields of a loss event: the seconds for which training stood still, in total (``stop_s``) and by part."""
    seconds = {"noticed_s": stop.noticed_s, "regrouped_s": stop.regrouped_s, "step_s": stop.step_s}
    return {"stop_s": round(stop.seconds, 6), **{name: round(value, 6) for name, value in seconds.items()}}


def _is_idle(result: BarrierResult) -> bool:
    """True if the job has the same peers as before a barrier, no change of these is under way, and none was."""
    before, after = result.before, result.after
    assert before is not None
    changes = before.terms.target_size or after.terms.target_size or after.terms.leaving or after.terms.departing
    return not changes and after.view.version == before.view.version


def _rules_of(requests: Sequence[Asked]) -> str:
    """The names of the rules that caused a change, as text; empty without rules."""
    return " and ".join(one.by for one in requests)


def _asked_fields(request: Asked) -> dict[str, Any]:
    """The fields of an event about a request; the size is 0 for a request of a setting."""
    return {
        "step": request.step, "rule": request.by, "saw": request.inputs, "won": request.won, "lost": request.lost,
        "asked": request.what.size if isinstance(request.what, Resize | Leave) else 0,
        "peers": request.what.peers if isinstance(request.what, Leave) else (), "when": _when(request),
        "settings": _settings_with(request),
    }  # fmt: skip


def _settings_with(request: Asked) -> str:
    """The batch and the learning rate that come with a requested size, as text."""
    return " and ".join(map(_setting, settings_with_size(request)))


def _setting(request: Asked) -> str:
    """The requested setting as text; empty for a request of a size or of peers."""
    match request.what:
        case SetBatch(samples):
            return f"a global batch size of {samples:g}"
        case SetRate(rate):
            return f"a learning rate of {rate:g}"
        case SetAverageInterval(every):
            return f"an average of models every {every:g} steps"
        case SetNumber(name, value) | SetValue(name, value):
            return f"the value {name!r} to be {value!r}"
        case RestoreCheckpoint(name):
            return f"the checkpoint {name!r} restored"
    return ""


def _when(request: Asked) -> str:
    """The time at which the peers named by a rule should leave."""
    return request.what.when if isinstance(request.what, Leave) else ""


def _is_exchange(request: Asked) -> bool:
    """True if a request exchanges peers for new ones."""
    return _when(request) == "replaced"


def _dropped(request: Asked, size: int) -> events.SupersededEvent:
    """The event of a batch and a rate that do not come into force, since the job has got another size."""
    fields = _asked_fields(request) | {"asked": 0, "settings": ""}
    return events.SupersededEvent(**fields, what=_settings_with(request), by=f"a size of {size}")


def _is_carried_out(request: Asked, size: int) -> bool:
    """True if a request is carried out in a view of this size, although further joiners are still on their way."""
    return request.what.size == size if isinstance(request.what, Resize) else not _is_exchange(request)


def metrics_line(now: float, metrics: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a step's line: the time at which the step ended, in seconds, and the step's numbers."""
    return {"time": round(now, 6), **metrics()}


def _fired(fired: FiredRule) -> events.ShadowEvent | events.HeldEvent:
    """The event of a rule that fired without effect."""
    fields: dict[str, Any] = {"step": fired.step, "rule": fired.rule, "saw": fired.inputs, "ranks": fired.ranks}
    fields |= {"action": type(fired.action).__name__, "asked": None if math.isnan(fired.value) else fired.value}
    return events.HeldEvent(**fields, budget=fired.held_by) if fired.mode == "held" else events.ShadowEvent(**fields)


def timing_tree(seconds: Mapping[str, float], *, within: str = "") -> tuple[events.SpanPart, ...]:
    """The parts of a stop as a tree, in the order in which they were timed.

    Args:
        seconds: Seconds by name; a nested part is named by its parent's name, a slash, and the part's name. Parts may
            overlap: for example, a state is transferred while the attachment opens.
        within: The name of the part whose subparts are returned; empty for the top.

    >>> [barrier] = timing_tree({"barrier": 0.02, "barrier/digest": 0.01})
    >>> barrier.s, barrier.parts
    (0.02, (SpanPart(name='digest', s=0.01, parts=()),))
    """
    prefix = f"{within}/" if within else ""
    names = [name for name in seconds if name.startswith(prefix) and "/" not in name[len(prefix) :]]
    return tuple(
        events.SpanPart(name=name[len(prefix) :], s=round(seconds[name], 6), parts=timing_tree(seconds, within=name))
        for name in names
    )
