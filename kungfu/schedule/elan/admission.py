"""Whether a waiting job may start. Xie et al., *Elan*, 2020, section VI-C, with the gaps filled as documented here.

A job is never admitted beyond the point where everybody has only its fewest GPUs. It is admitted if its fewest GPUs
are free (the paper says fewer than the free ones; then one idle GPU could never start a 1-GPU job), or if that does
not increase the average completion time. The paper does not say how that is known: here the rest of the schedule is
played forward twice without further arrivals, admitting now against waiting for the first completion after which the
fewest GPUs are free.
"""

from __future__ import annotations

from kungfu.schedule.elan.crew import Crew, Setting, allocated, joined, left_s
from kungfu.schedule.elan.forecast import estimated_opening, estimated_sum_of_ends_s, opening, sum_of_ends_s

__all__ = ["admissible", "does_not_delay", "spare_gpus"]

_ROUNDING = 1 + 1e-9
"""Two futures of equal length are equally good, whatever the rounding of their sums."""


def spare_gpus(crew: Crew, *, setting: Setting) -> int:
    """GPUs that would be left if everybody had its fewest."""
    return setting.gpus - int(setting.workload.min_gpus[crew.jobs].sum())


def admissible(crew: Crew, *, job: int, setting: Setting, exact_up_to: int) -> bool:
    """Whether ``job`` may join the crew now.

    Args:
        crew: who runs, with the GPUs they hold.
        job: who asks.
        setting: curves and size of the cluster.
        exact_up_to: futures of crews of up to this many jobs are played exactly, those of larger ones estimated.
    """
    fewest = int(setting.workload.min_gpus[job])
    if fewest > spare_gpus(crew, setting=setting):
        return False
    if fewest <= setting.gpus - int(crew.held.sum()):
        return True
    if len(crew.jobs) < exact_up_to:
        return _pays(crew, job=job, fewest=fewest, setting=setting)
    return _seems_to_pay(crew, job=job, fewest=fewest, setting=setting)


def _pays(crew: Crew, *, job: int, fewest: int, setting: Setting) -> bool:
    """Whether the sum of completion times is no larger if ``job`` starts now than if it waits."""
    wait = opening(crew, wanted=fewest, setting=setting)
    later = joined(wait.crew, job=job, setting=setting)
    waiting_s = wait.ends_s + wait.time_s * len(later.jobs) + sum_of_ends_s(later, setting=setting)
    return sum_of_ends_s(joined(crew, job=job, setting=setting), setting=setting) <= waiting_s * _ROUNDING


def _seems_to_pay(crew: Crew, *, job: int, fewest: int, setting: Setting) -> bool:
    """The same by estimate: both futures share the GPUs now and at the opening, and not again."""
    wait = estimated_opening(crew, wanted=fewest, setting=setting)
    later = allocated(joined(wait.crew, job=job, setting=setting), setting=setting)
    waiting_s = wait.ends_s + wait.time_s * len(later.jobs) + float(left_s(later, setting=setting).sum())
    sooner = joined(crew, job=job, setting=setting)
    return estimated_sum_of_ends_s(sooner, again_s=wait.time_s, setting=setting) <= waiting_s * _ROUNDING


def does_not_delay(crew: Crew, *, job: int, head: int, setting: Setting, exact_up_to: int) -> bool:
    """Whether ``head`` finds its fewest GPUs free no later if ``job`` joins the crew now."""
    wanted = int(setting.workload.min_gpus[head])
    opens = opening if len(crew.jobs) < exact_up_to else estimated_opening
    limit_s = opens(crew, wanted=wanted, setting=setting).time_s
    return opens(joined(crew, job=job, setting=setting), wanted=wanted, setting=setting).time_s <= limit_s * _ROUNDING
