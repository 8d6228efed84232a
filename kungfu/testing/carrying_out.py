"""What becomes of a modelled job by what its policies ask for: as in a real one, a step later, in a barrier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from kungfu.compiler import Plan, Settled, settle
from kungfu.compiler.replay import Replay
from kungfu.control import Call, Evict, Keep, Replace, Rescale, SetGlobalBatchSize, SetLearningRate, Stop
from kungfu.control.hook import Control
from kungfu.runtime.deciding.setting import Moment, Setting, settled
from kungfu.testing.decision import Decision
from kungfu.testing.job import Job

__all__ = ["Course"]


@dataclass
class _Coming:
    """A larger view, or one with other peers, that is being prepared until after step `due`."""

    due: int
    size: int
    stay: list[int]
    keep: Keep


@dataclass
class Course:
    """A job, the plan that watches it, and what was asked for and is not done yet."""

    job: Job
    replay: Replay
    posted: list[Decision] = field(default_factory=list)
    coming: _Coming | None = None
    newest: int = 0

    @property
    def plan(self) -> Plan:
        """The rules of the job."""
        return self.replay.plan

    def barrier(self, decided: Sequence[Decision]) -> list[Decision]:
        """After the step in which this was decided: carries out what was posted before, and gives what that settled.

        `decided` are the decisions of rules that act.
        """
        due, self.posted = self.posted, list(decided)
        brought = [*self._served(due), *self._arrived()]
        self.job.pending = bool(self.posted) or self.coming is not None
        return brought

    def _served(self, due: Sequence[Decision]) -> Iterator[Decision]:
        self._set(tuple(_setting(one) for one in due if isinstance(one.action, _SETTERS)))
        for one in due:
            if isinstance(one.action, Rescale):
                yield from self._rescale(round(one.value), keep=one.action.keep)
            elif isinstance(one.action, Call):
                yield from self._call(one, one.action)
            elif isinstance(one.action, Evict):
                stay = [rank for rank in range(self.job.size) if rank not in one.ranks]
                yield from self._enter(stay, size=len(stay), keep="local_batch_size")
            elif isinstance(one.action, Replace):
                self._prepare([rank for rank in range(self.job.size) if rank not in one.ranks], size=self.job.size)

    def _call(self, decision: Decision, action: Call) -> Iterator[Decision]:
        control = Control(size=self.job.size, step=decision.step)
        action.fn(control, *list(decision.saw.values())[: len(action.signals)])
        if control.wanted is not None:
            start = self.job.model.start
            wanted = min(max(control.wanted, start.min_size), start.max_size)
            yield from self._rescale(wanted, keep="local_batch_size")

    def _rescale(self, size: int, *, keep: Keep) -> Iterator[Decision]:
        if size > self.job.size:
            self._prepare(list(range(self.job.size)), size=size, keep=keep)
        elif size < self.job.size:
            yield from self._enter(list(range(size)), size=size, keep=keep)

    def _prepare(self, stay: list[int], *, size: int, keep: Keep = "local_batch_size") -> None:
        self.coming = _Coming(self.job.step + self.job.model.rescaling.joining_steps, size, stay, keep)

    def _arrived(self) -> Iterator[Decision]:
        coming = self.coming
        if coming is not None and self.job.step >= coming.due:
            self.coming = None
            yield from self._enter(coming.stay, size=coming.size, keep=coming.keep)

    def _enter(self, stay: list[int], *, size: int, keep: Keep) -> Iterator[Decision]:
        """A new view: of those who stay, in their order, and of new peers behind them."""
        job, before = self.job, (self.job.size, self.job.terms.global_batch_size)
        self._regroup(stay, size=size)
        if size != before[0]:
            batch = before[1] if keep == "global_batch_size" else round(job.terms.batch_per_peer * size)
            job.terms = replace(job.terms, global_batch_size=batch, batch_per_peer=batch / size)
            brought = settle(self.plan, self._at_rescale(*before))
            self._set(tuple(_setting(one) for one in (_as_decision(one, step=job.step - 1) for one in brought)))
            yield from (_as_decision(one, step=job.step - 1) for one in brought)

    def _regroup(self, stay: list[int], *, size: int) -> None:
        job, states = self.job, self.replay.states
        self.newest = max(self.newest, *job.peers)
        joining = range(self.newest + 1, self.newest + 1 + size - len(stay))
        job.peers = [*(job.peers[rank] for rank in stay), *joining]
        job.clocks.view_steps, job.clocks.rescale_s = 0, job.model.rescaling.stop_s
        job.clocks.total_s += job.model.rescaling.stop_s
        self.replay.states = {
            fold: tuple(tuple(values[rank] for rank in stay) for values in fields) for fold, fields in states.items()
        }
        self.replay.rescale(len(stay))
        self.replay.rescale(size)

    def _at_rescale(self, size: int, batch: int) -> dict[str, float]:
        """What the barrier knows, with the size and batch that were."""
        job, ramp = self.job, self.job.terms.ramp
        return {
            "size": job.size,
            "previous_size": size,
            "step": job.step - 1,
            "global_batch_size": job.terms.global_batch_size,
            "previous_global_batch_size": batch,
            "learning_rate": job.learning_rate if ramp is None else ramp.target,
            "min_size": job.model.start.min_size,
            "max_size": job.model.start.max_size,
            "epoch_samples": 0,
        }

    def _set(self, settings: Sequence[Setting]) -> None:
        job = self.job
        now = Moment(job.step - 1, job.samples_done, job.size, 0, job.learning_rate)
        job.terms = settled(job.terms, settings, now)


_SETTERS = (SetGlobalBatchSize, SetLearningRate, Stop)


def _as_decision(one: Settled, *, step: int) -> Decision:
    return Decision(step, one.rule, one.action, one.value, one.saw)


def _setting(one: Decision) -> Setting:
    action = one.action
    if isinstance(action, SetLearningRate):
        over, unit = action.over, action.unit
        return Setting("learning_rate", one.value, one.rule, one.step, over=over, unit=unit)
    if isinstance(action, SetGlobalBatchSize):
        return Setting("global_batch_size", one.value, one.rule, one.step)
    return Setting("stop", math.nan, one.rule, one.step)
