"""The exact continuation of a schedule, for Elan's admission: GPUs are redistributed at every completion.

A future is simulated completion by completion, and only as far as a decision requires. The computation of a sum of
completion times ends once the sum must exceed its limit. From the moment when all jobs can have all GPUs that help
them, the rest of the sum is a formula. Vectors are lists of a few dozen numbers, for which plain loops are faster
than NumPy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from operator import mul, truediv
from typing import Any

from kungfu_planning.schedule.cluster_policies.elan_forecast import (
    LEAST_WORK,
    ROUNDING,
    ForecastContext,
    JobLadder,
    RunningJobs,
)


class ExactFuture:
    """The rest of a schedule without further arrivals, if a waiting job starts now and if it starts later.

    Args:
        running: the running jobs, with their present GPUs.
        context: the curves of the jobs, and the size of the cluster.
    """

    def __init__(self, running: RunningJobs, *, context: ForecastContext) -> None:
        begin = _Moment(context.gpus)
        for job, work, held in zip(running.jobs.tolist(), running.work.tolist(), running.held.tolist(), strict=True):
            begin.insert(job, ladder=context.ladder(job), work=work, held=held)
        begin.share()
        self._context = context
        self._moments = [begin]  # now, and after each completion needed so far

    def pays(self, job: int) -> bool:
        """True if starting ``job`` now does not increase the sum of completion times, compared with a later start.

        The later start is at the first completion after which the job's fewest GPUs are free.
        """
        wait = self._opening(self._context.fewest(job))
        limit_s = self._joined(wait, job=job).sum_of_ends_s() * ROUNDING
        return self._joined(self._moments[0], job=job).sum_of_ends_s(limit_s=limit_s) <= limit_s

    def delays(self, job: int, *, head: int) -> bool:
        """True if starting ``job`` now delays the time at which ``head`` can start on its fewest GPUs."""
        wanted = self._context.fewest(head)
        limit_s = self._opening(wanted).now_s * ROUNDING
        sooner = self._joined(self._moments[0], job=job)
        while sooner.now_s <= limit_s:
            sooner.complete()
            if sooner.free >= wanted:
                return sooner.now_s > limit_s
        return True

    def _joined(self, moment: _Moment, *, job: int) -> _Moment:
        after, context = moment.copied(), self._context
        after.insert(job, ladder=context.ladder(job), work=context.whole_work(job), held=context.fewest(job))
        return after

    def _opening(self, wanted: int) -> _Moment:
        """The moment of the first completion that frees ``wanted`` GPUs, before these are shared again."""
        for moment in self._moments[1:]:
            if moment.free >= wanted:
                return moment
        moment = self._moments[-1]
        while True:
            moment = moment.copied()
            moment.complete()
            self._moments.append(moment)
            if moment.free >= wanted:
                return moment


class _Moment:
    """A moment of a future, with lists that have an entry for each running job in order of arrival.

    Attributes:
        free: GPUs that no job holds; negative if the GPUs of a joined job must still be taken from other jobs.
        now_s: seconds since the beginning of the future.
        ends_s: the sum of the completion times of ended jobs.
    """

    def __init__(self, gpus: int) -> None:
        self._gpus = self.free = gpus
        self.now_s = self.ends_s = 0.0
        self._tops = 0
        self._jobs: list[int] = []
        self._ladders: list[JobLadder] = []
        self._work: list[float] = []
        self._held: list[int] = []
        # The throughput on the present GPUs, and on all GPUs that help.
        self._rates: list[float] = []
        self._top_rates: list[float] = []
        # The seconds per unit of work that the next GPU would save, and that the last GPU saves.
        self._next: list[float] = []
        self._last: list[float] = []

    def copied(self) -> _Moment:
        """A copy of this moment with lists of its own."""
        copy = _Moment(self._gpus)
        for name, value in vars(self).items():
            setattr(copy, name, value.copy() if isinstance(value, list) else value)
        return copy

    def insert(self, job: int, *, ladder: JobLadder, work: float, held: int) -> None:
        """Adds a job with ``work`` left on ``held`` GPUs; the number of free GPUs may become negative."""
        at = bisect_left(self._jobs, job)
        entry = (
            job, ladder, max(work, LEAST_WORK), held,
            ladder.rates[held], ladder.rates[ladder.top], ladder.steps[held], ladder.steps[held - 1],
        )  # fmt: skip
        for values, value in zip(self._entries(), entry, strict=True):
            values.insert(at, value)
        self._tops += ladder.top
        self.free -= held

    def share(self) -> None:
        """Shares all GPUs by the greedy rule, as `greedy.fill_gpus` does."""
        if not self._jobs:
            return
        up, down, move = list(map(mul, self._work, self._next)), list(map(mul, self._work, self._last)), self._move
        # Take back GPUs without gain, and GPUs that exceed the cluster.
        while self.free < 0 or min(down) < 0:
            move(_last_index(down, min(down)), -1, up, down)
        while self.free > 0 and (best := max(up)) > 0:
            move(up.index(best), 1, up, down)
        while not self.free and (best := max(up)) >= (worst := min(down)):
            giver, taker = _last_index(down, worst), up.index(best)
            if best == worst and taker >= giver:
                return
            move(giver, -1, up, down)
            move(taker, 1, up, down)

    def _move(self, index: int, by: int, up: list[float], down: list[float]) -> None:
        ladder, work = self._ladders[index], self._work[index]
        self._held[index] = held = self._held[index] + by
        self.free -= by
        self._rates[index] = ladder.rates[held]
        self._next[index] = after = ladder.steps[held]
        self._last[index] = before = ladder.steps[held - 1]
        up[index], down[index] = work * after, work * before

    def complete(self) -> None:
        """Shares the GPUs and advances to the next completion; several jobs may end at once."""
        self.share()
        left = list(map(truediv, self._work, self._rates))
        step = min(left)
        self.now_s += step
        self._work = [work - rate * step for work, rate in zip(self._work, self._rates, strict=True)]
        while step in left:
            index = left.index(step)
            self.ends_s += self.now_s
            self.free += self._held[index]
            self._tops -= self._ladders[index].top
            for values in (left, *self._entries()):
                del values[index]
        if self._work and min(self._work) < LEAST_WORK:  # a remainder by rounding
            self._work = [max(work, LEAST_WORK) for work in self._work]

    def _entries(self) -> tuple[list[Any], ...]:
        """The lists of this moment that have one entry per running job."""
        return (
            self._jobs, self._ladders, self._work, self._held, self._rates, self._top_rates, self._next, self._last
        )  # fmt: skip

    def sum_of_ends_s(self, *, limit_s: float = math.inf) -> float:
        """The sum of all completion times, in seconds like ``now_s``; if above ``limit_s``, only a lower bound."""
        while self._jobs:
            # No job can end earlier than with all the GPUs that help it.
            least_s: float = self.ends_s + self.now_s * len(self._jobs) + sum(map(truediv, self._work, self._top_rates))
            if least_s > limit_s or self._tops <= self._gpus:
                return least_s
            self.complete()
        return self.ends_s


def _last_index(values: list[float], value: float) -> int:
    return len(values) - 1 - values[::-1].index(value)
