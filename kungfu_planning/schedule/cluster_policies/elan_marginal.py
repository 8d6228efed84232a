"""An estimate of the rest of a schedule with many running jobs, for Elan's admission; GPUs are not shared again.

Starting a job takes GPUs from running jobs, always the GPU that saves its job the least time; of hundreds, few jobs
lose a GPU. The time that these jobs lose is compared with the time that the new job gains. This comparison is of first
order: GPUs that become free are not shared again. All waiting jobs of an event share one list of the GPUs to take.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from kungfu_planning.schedule.cluster_policies.elan_forecast import (
    LEAST_WORK,
    ROUNDING,
    ForecastContext,
    Openings,
    RunningJobs,
)


class _Taken(NamedTuple):
    """A GPU taken from a running job: the seconds that it saved; the job, and its GPUs and seconds left afterwards."""

    gain: float
    at: int
    kept: int
    left_s: float


class MarginalFuture:
    """The rest of a schedule in which starting a job takes GPUs from running jobs, and freed GPUs stay idle.

    Args:
        shared: the running jobs, with all GPUs shared.
        context: the curves of the jobs, and the size of the cluster.
    """

    def __init__(self, shared: RunningJobs, *, context: ForecastContext) -> None:
        workload = context.workload
        self._context, self._jobs, self._held = context, shared.jobs, shared.held
        self._work = np.maximum(shared.work, LEAST_WORK)
        self._left = self._work / workload.rates[workload.kind[shared.jobs], shared.held]
        self._free = context.gpus - int(shared.held.sum())
        self._openings = Openings.of(self._left, shared.held, gpus=context.gpus)
        # The GPUs taken so far, the number that each job keeps, and in reverse order the gain of each job's last GPU.
        self._takes: list[_Taken] = []
        self._kept: list[int] = shared.held.tolist()
        gains = self._work * context.ladders.steps[context.ladders.row[shared.jobs], shared.held - 1]
        self._gains = gains[::-1].copy()
        # Waiting jobs often need the same number of GPUs.
        self._shares: dict[int, int] = {}
        self._losses: dict[tuple[int, float], float] = {}
        self._frees: dict[tuple[int, float], int] = {}

    def pays(self, job: int) -> bool:
        """True if the running jobs together lose at most the time that ``job`` gains by starting now.

        Without the start, ``job`` waits until a running job's end leaves its fewest GPUs free, and then runs as long as
        it would run now. A job that gives up GPUs is slower for the wait, or until the job itself or ``job`` ends.
        """
        wait_s = self._openings.first_s(self._context.fewest(job))
        return self._lost_s(self._share(job) - self._free, min(wait_s, self._run_s(job))) <= wait_s * ROUNDING

    def delays(self, job: int, *, head: int) -> bool:
        """True if starting ``job`` now delays the time at which ``head`` can start on its fewest GPUs."""
        share, wanted = self._share(job), self._context.fewest(head)
        limit_s = self._openings.first_s(wanted) * ROUNDING
        held = share if self._run_s(job) > limit_s else 0
        return self._free_at(limit_s, share - self._free) - held < wanted

    def _share(self, job: int) -> int:
        """The number of GPUs that ``job`` gets if it starts now, by the rule of `greedy.fill_gpus`."""
        if job not in self._shares:
            steps, work = self._context.ladder(job).steps, self._context.whole_work(job)
            gpus = self._context.fewest(job)
            while (gain := work * steps[gpus]) > 0 and (gpus < self._free or self._gets(job, gain, gpus - self._free)):
                gpus += 1
            self._shares[job] = gpus
        return self._shares[job]

    def _gets(self, job: int, gain: float, count: int) -> bool:
        """True if one more GPU saves ``job`` more (``gain``) than the owner loses; ``count`` GPUs are taken before."""
        taken = self._taken(count)
        return gain > taken.gain or (gain == taken.gain and job < self._jobs[taken.at])

    def _run_s(self, job: int) -> float:
        """The seconds that ``job`` would run on the GPUs that it gets if it starts now."""
        return self._context.whole_work(job) / self._context.ladder(job).rates[self._share(job)]

    def _lost_s(self, count: int, span_s: float) -> float:
        """The sum of the delays, in seconds, of the jobs that give up ``count`` GPUs for ``span_s`` seconds."""
        if (count, span_s) not in self._losses:
            pairs = [(each.left_s, self._left.item(each.at)) for each in self._givers(count)]
            losses = (min(span_s * (1 - before_s / left_s), left_s - before_s) for left_s, before_s in pairs)
            self._losses[count, span_s] = sum(losses)
        return self._losses[count, span_s]

    def _free_at(self, moment_s: float, count: int) -> int:
        """The number of free GPUs at ``moment_s``, including the ``count`` GPUs that running jobs give up now."""
        if (count, moment_s) not in self._frees:
            ended = self._openings.ends_s.searchsorted(moment_s, side="right")
            free = self._openings.free_after.item(ended - 1)
            for each in self._givers(count):
                held = int(self._held[each.at]) if self._left[each.at] > moment_s else 0
                free += held - (each.kept if each.left_s > moment_s else 0)
            self._frees[count, moment_s] = free
        return self._frees[count, moment_s]

    def _givers(self, count: int) -> Collection[_Taken]:
        """For each running job that must give up GPUs when ``count`` are taken, the last GPU that is taken from it."""
        if count > len(self._takes):
            self._taken(count - 1)
        return {each.at: each for each in self._takes[: max(0, count)]}.values()

    def _taken(self, count: int) -> _Taken:
        """The GPU to take after ``count`` others, which saves its job the least; infinite gain if none is left."""
        while len(self._takes) <= count:
            reverse = int(self._gains.argmin())  # of equal gains the last job gives first
            gain, at = self._gains.item(reverse), len(self._kept) - 1 - reverse
            if gain == math.inf:
                return _Taken(gain, at, self._kept[at], math.inf)
            work, ladder = self._work.item(at), self._context.ladder(self._jobs.item(at))
            self._kept[at] = kept = self._kept[at] - 1
            self._takes.append(_Taken(gain, at, kept, work / ladder.rates[kept]))
            self._gains[reverse] = work * ladder.steps[kept - 1]
        return self._takes[count]
