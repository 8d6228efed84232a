"""What becomes of a modelled job by what its policies ask for: as in a real one, a step later, in a barrier.

What rules and hooks ask for is merged and decided by the code of the runtime (``runtime.core``); only the peers,
their readiness and the clock are modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kungfu.compiler import Plan, RescaleSetting, evaluate_rescale_rules
from kungfu.compiler.replay import Replay
from kungfu.control import Call, Evict, Replace, Rescale, SetGlobalBatchSize, SetLearningRate, Stop
from kungfu.control.hook import Control
from kungfu.runtime.core.barrier import Decision as Decided
from kungfu.runtime.core.barrier import Prepared, decide, meant_size
from kungfu.runtime.core.barrier_requests import Leave, RescaleRequest, merged
from kungfu.runtime.core.terms import RunPosition, SettingChange, apply_settings
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Limits
from kungfu.testing.decision import Decision
from kungfu.testing.job import Job

__all__ = ["Course"]


@dataclass(frozen=True)
class _Coming:
    """So many new peers get ready until after step `due`."""

    due: int
    count: int


@dataclass
class Course:
    """A job, the plan that watches it, and what was asked for and is not done yet.

    `unmet` says of a decision, by its rule and step, why nothing came of it.
    """

    job: Job
    replay: Replay
    posted: list[Decision] = field(default_factory=list)
    coming: _Coming | None = None
    newest: int = 0
    unmet: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The rules of the job."""
        return self.replay.plan

    def barrier(self, decided: Sequence[Decision]) -> list[Decision]:
        """After the step in which this was decided: carries out what was posted before, and gives what that settled.

        `decided` are the decisions of rules that act.
        """
        due, self.posted = self.posted, list(decided)
        wish, superseded = merged([one for decision in due if (one := self._wish(decision)) is not None])
        for passed_over in superseded:
            self.unmet[passed_over.wish.rule, passed_over.wish.step] = f"{passed_over.by} came before it"
        settings = [_setting(one) for one in due if isinstance(one.action, _SETTERS)]
        brought = [*self._carried_out(wish, None, settings)]
        if self.coming is not None and self.job.step >= self.coming.due:
            ready = tuple(_peer(self._newest() + number) for number in range(1, self.coming.count + 1))
            brought += self._carried_out(None, Prepared(ready), [])
        self.job.pending = bool(self.posted) or self.job.terms.target_size > 0
        return brought

    # ---- what is asked for -----------------------------------------------------------------------------------------

    def _wish(self, one: Decision) -> RescaleRequest | None:
        """What a rule that fired asks of the membership; a mask names ranks, and a wish peers."""
        action = one.action
        if isinstance(action, Rescale):
            return RescaleRequest(round(one.value), action.keep, one.rule, one.step, one.saw)
        if isinstance(action, Call):
            return self._asked_by_hook(one, action)
        if isinstance(action, Evict | Replace):
            peers = tuple(self.job.peers[rank] for rank in one.ranks if rank < self.job.size)
            when: Literal["now", "replaced"] = "now" if isinstance(action, Evict) else "replaced"
            size = self.job.size - (len(peers) if when == "now" else 0)
            leave = Leave(peers, when)
            return RescaleRequest(size, "local_batch_size", one.rule, one.step, one.saw, leave=leave) if peers else None
        return None

    def _asked_by_hook(self, one: Decision, action: Call) -> RescaleRequest | None:
        control = Control(size=self.job.size, step=one.step)
        action.fn(control, *list(one.saw.values())[: len(action.signals)])
        if control.wanted is None:
            if control.passed_over:
                self.unmet[one.rule, one.step] = control.passed_over
            return None
        if one.over_budget:
            self.unmet[one.rule, one.step] = "the job's budget of rescales is used up"
            return None
        return RescaleRequest(control.wanted, "local_batch_size", one.rule, one.step, one.saw)

    # ---- what becomes of it ----------------------------------------------------------------------------------------

    def _carried_out(
        self, wish: RescaleRequest | None, prepared: Prepared | None, settings: Sequence[SettingChange]
    ) -> Iterator[Decision]:
        """The membership first, then what rules on a rescale and other rules set: in the order of a real barrier."""
        job, start = self.job, self.job.model.start
        view = View(job.view, tuple(_peer(number) for number in job.peers))
        before = (meant_size(view, job.terms), job.terms.global_batch_size)
        decided = decide(view, job.terms, Limits(start.min_size, start.max_size), wish=wish, prepared=prepared)
        self._enter(view, decided)
        size = meant_size(decided.view, decided.terms)
        brought = evaluate_rescale_rules(self.plan, self._at_rescale(size, *before)) if size != before[0] else ()
        chosen = [_as_decision(one, step=job.step - 1) for one in brought]
        now = RunPosition(job.step - 1, job.samples_done, size, 0, job.learning_rate)
        job.terms = apply_settings(job.terms, [*(_setting(one) for one in chosen), *settings], now)
        yield from chosen

    def _enter(self, before: View, decided: Decided) -> None:
        """The terms that were decided are in force, and a new view if there is one; those who are asked for come."""
        job, view, terms = self.job, decided.view, decided.terms
        if decided.prepare is not None or view.version != before.version:
            count = terms.target_size - view.size + len(terms.leaving) if terms.target_size else 0
            self.coming = _Coming(job.step + job.model.rescaling.joining_steps, count) if count else None
        job.terms = terms
        if view.version != before.version:
            self.newest = max(self._newest(), *view.ids)
            stay = [rank for rank, peer in enumerate(before.peers) if view.rank_of(peer.id) is not None]
            self._regroup(stay, view)

    def _regroup(self, stay: Sequence[int], view: View) -> None:
        """Those who stay keep what they hold, and new peers begin behind them."""
        job, states = self.job, self.replay.states
        job.peers, job.view = list(view.ids), view.version
        job.clocks.view_steps, job.clocks.rescale_s = 0, job.model.rescaling.stop_s
        job.clocks.total_s += job.model.rescaling.stop_s
        self.replay.states = {
            fold: tuple(tuple(values[rank] for rank in stay) for values in fields) for fold, fields in states.items()
        }
        self.replay.rescale(len(stay))
        self.replay.rescale(view.size)

    def _newest(self) -> int:
        return max(self.newest, *self.job.peers)

    def _at_rescale(self, size: int, previous_size: int, previous_batch: int) -> dict[str, float]:
        """What the barrier knows, with the size and batch that were."""
        job, ramp = self.job, self.job.terms.ramp
        return {
            "size": size,
            "previous_size": previous_size,
            "step": job.step - 1,
            "global_batch_size": job.terms.global_batch_size,
            "previous_global_batch_size": previous_batch,
            "learning_rate": job.learning_rate if ramp is None else ramp.target,
            "min_size": job.model.start.min_size,
            "max_size": job.model.start.max_size,
            "epoch_samples": 0,
        }


def _peer(number: int) -> Peer:
    return Peer(number, "")


_SETTERS = (SetGlobalBatchSize, SetLearningRate, Stop)


def _as_decision(one: RescaleSetting, *, step: int) -> Decision:
    return Decision(step, one.rule, one.action, one.value, one.inputs)


def _setting(one: Decision) -> SettingChange:
    action = one.action
    if isinstance(action, SetLearningRate):
        over, unit = action.over, action.unit
        return SettingChange("learning_rate", one.value, one.rule, one.step, over=over, unit=unit)
    if isinstance(action, SetGlobalBatchSize):
        return SettingChange("global_batch_size", one.value, one.rule, one.step)
    return SettingChange("stop", math.nan, one.rule, one.step)
