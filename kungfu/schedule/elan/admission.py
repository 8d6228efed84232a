"""Whether a waiting job may start. Xie et al., *Elan*, 2020, section VI-C, with the gaps filled as documented here.

A job is never admitted beyond the point where everybody has only its fewest GPUs. It is admitted if its fewest GPUs
are free (the paper says fewer than the free ones; then one idle GPU could never start a 1-GPU job), or if that does
not increase the average completion time. The paper does not say how that is known: here the rest of the schedule is
played forward twice without further arrivals, admitting now against waiting for the first completion after which the
fewest GPUs are free.
"""

from __future__ import annotations

import math

from kungfu.schedule.elan.crew import Crew, Setting, joined
from kungfu.schedule.elan.forecast import estimated_opening_s, opening, sum_of_ends_s

__all__ = ["admissible", "does_not_delay", "spare_gpus"]


def spare_gpus(crew: Crew, *, setting: Setting) -> int:
    """GPUs that would be left if everybody had its fewest."""
    return setting.gpus - int(setting.workload.min_gpus[crew.jobs].sum())


def admissible(crew: Crew, *, job: int, setting: Setting, exact_up_to: int) -> bool:
    """Whether ``job`` may join the crew now.

    Args:
        crew: who runs, with the GPUs they hold.
        job: who asks.
        setting: curves and size of the cluster.
        exact_up_to: crews up to this many jobs are forecast to the last end, larger ones exactly up to the completion
            that the job would wait for and with fixed GPUs from there.
    """
    fewest = int(setting.workload.min_gpus[job])
    if fewest > spare_gpus(crew, setting=setting):
        return False
    if fewest <= setting.gpus - int(crew.held.sum()):
        return True
    return _pays(crew, job=job, fewest=fewest, setting=setting, exact=len(crew.jobs) < exact_up_to)


def _pays(crew: Crew, *, job: int, fewest: int, setting: Setting, exact: bool) -> bool:
    """Whether the sum of completion times is no larger if ``job`` starts now than if it waits."""
    wait = opening(crew, wanted=fewest, setting=setting)
    later = joined(wait.crew, job=job, setting=setting)
    waiting_s = wait.ends_s + len(later.jobs) * wait.time_s
    waiting_s += sum_of_ends_s(later, setting=setting, until_s=math.inf if exact else 0.0)
    sooner = joined(crew, job=job, setting=setting)
    return sum_of_ends_s(sooner, setting=setting, until_s=math.inf if exact else wait.time_s) <= waiting_s


def does_not_delay(crew: Crew, *, job: int, head: int, setting: Setting, exact_up_to: int) -> bool:
    """Whether ``head`` finds its fewest GPUs free no later if ``job`` joins the crew now."""
    wanted = int(setting.workload.min_gpus[head])
    sooner = joined(crew, job=job, setting=setting)
    if len(crew.jobs) < exact_up_to:
        limit_s = opening(crew, wanted=wanted, setting=setting).time_s
        return opening(sooner, wanted=wanted, setting=setting).time_s <= limit_s
    limit_s = estimated_opening_s(crew, wanted=wanted, setting=setting)
    return estimated_opening_s(sooner, wanted=wanted, setting=setting) <= limit_s
