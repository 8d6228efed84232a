"""Policies by name, each with its default pauses and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kungfu_planning.schedule.cluster_policies.elan import elastic_backfill, elastic_fifo
from kungfu_planning.schedule.cluster_policies.rigid import conservative_backfill, easy_backfill, fifo, first_fit
from kungfu_planning.schedule.cluster_policies.tiresias import elastic_tiresias, tiresias
from kungfu_planning.schedule.cluster_policies.tiresias_queues import PAPER_QUANTA
from kungfu_planning.schedule.engine import Pauses
from kungfu_planning.schedule.job import ClusterJob, with_limits
from kungfu_planning.schedule.state import ClusterPolicy


@dataclass(frozen=True)
class Tuning:
    """The parameters of all policies; each policy uses some of them."""

    quanta: tuple[float, ...] = PAPER_QUANTA
    starvation: float | None = None
    pending_over: int = 0
    exact_up_to: int = 64


@dataclass(frozen=True)
class CatalogueEntry:
    """A policy, with the settings of its paper.

    Attributes:
        make: Returns the policy with given parameters.
        pauses: The pauses measured in the paper; None for a policy that never adjusts or preempts a job.
        shares: The minimum and maximum GPUs of a job, as shares of its request; None if a job may have from
            one GPU to the whole cluster.
        tuning: The fields of `Tuning` that the policy uses.
        defaults: The values of these fields unless others are given.
        adjusts: True if the policy changes the GPUs of running jobs.
        preempts: True if the policy stops running jobs.
    """

    make: Callable[[Tuning], ClusterPolicy[Any]]
    pauses: Pauses | None = None
    shares: tuple[float, float] | None = None
    tuning: frozenset[str] = frozenset()
    defaults: Tuning = Tuning()
    adjusts: bool = False
    preempts: bool = False

    @property
    def options(self) -> frozenset[str]:
        """The names of the options on which a simulation of this policy depends, besides the trace and the cluster."""
        return self.tuning | (_OF_ADJUSTING if self.adjusts else frozenset()) | ({"resume"} if self.preempts else set())


# Only policies that adjust running jobs pause them and use their limits.
_OF_ADJUSTING = frozenset({"pause", "pause_in", "overhead", "min_share", "max_share"})
_OF_QUEUES = frozenset({"quanta", "starvation"})
# A stop and a restart from a checkpoint take 30 to 60 s (Wu et al., 2019, section 6.2).
_STOP_AND_RESUME_S = 30.0


CATALOGUE: dict[str, CatalogueEntry] = {
    "fifo": CatalogueEntry(lambda tuning: fifo()),
    "first-fit": CatalogueEntry(lambda tuning: first_fit()),
    "easy": CatalogueEntry(lambda tuning: easy_backfill()),
    "conservative": CatalogueEntry(lambda tuning: conservative_backfill()),
    "tiresias": CatalogueEntry(
        lambda tuning: tiresias(quanta=tuning.quanta, starvation=tuning.starvation),
        pauses=Pauses(resume_s=_STOP_AND_RESUME_S),
        tuning=_OF_QUEUES,
        preempts=True,
    ),
    "elastic-tiresias": CatalogueEntry(
        lambda tuning: elastic_tiresias(
            pending_over=tuning.pending_over, quanta=tuning.quanta, starvation=tuning.starvation
        ),
        pauses=Pauses(1.1, 0.0, resume_s=_STOP_AND_RESUME_S),
        tuning=_OF_QUEUES | {"pending_over"},
        adjusts=True,
        preempts=True,
    ),
    "efifo": CatalogueEntry(
        lambda tuning: elastic_fifo(exact_up_to=tuning.exact_up_to),
        pauses=Pauses(1.0, 1.0),
        shares=(0.25, 4.0),
        tuning=frozenset({"exact_up_to"}),
        adjusts=True,
    ),
    "ebf": CatalogueEntry(
        lambda tuning: elastic_backfill(exact_up_to=tuning.exact_up_to),
        pauses=Pauses(1.0, 1.0),
        shares=(0.25, 4.0),
        tuning=frozenset({"exact_up_to"}),
        defaults=Tuning(exact_up_to=16),
        adjusts=True,
    ),
}
"""All policies: rigid policies, Tiresias rigid and elastic, and Elan's two."""


def with_shares(jobs: Sequence[ClusterJob], *, shares: tuple[float, float] | None) -> tuple[ClusterJob, ...]:
    """The jobs, each limited to ``shares`` (minimum, maximum) of its requested GPUs; unchanged without ``shares``."""
    if shares is None:
        return tuple(jobs)
    return with_limits(jobs, min_share=shares[0], max_share=shares[1])
