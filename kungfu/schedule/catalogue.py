"""Policies by name, with what each is usually run with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kungfu.errors import UsageError
from kungfu.schedule.elan import elastic_backfill, elastic_fifo
from kungfu.schedule.job import Job, with_limits
from kungfu.schedule.performing import Pauses
from kungfu.schedule.rigid import conservative_backfill, easy_backfill, fifo, first_fit
from kungfu.schedule.state import Policy
from kungfu.schedule.tiresias import PAPER_QUANTA, elastic_tiresias, tiresias

__all__ = ["CATALOGUE", "Entry", "Tuning", "limited", "named"]


@dataclass(frozen=True)
class Tuning:
    """Parameters of the policies; each policy takes those that it knows."""

    quanta: tuple[float, ...] = PAPER_QUANTA
    starvation: float | None = None
    pending_over: int = 0
    exact_up_to: int = 64


@dataclass(frozen=True)
class Entry:
    """A policy, the pauses that its paper measured, and the sizes its jobs may take, as shares of the request.

    Without pauses the policy never adjusts a running job. Without shares a job runs on anything from one GPU to the
    whole cluster. ``tuning`` are the fields of `Tuning` that the policy looks at.
    """

    make: Callable[[Tuning], Policy[Any]]
    pauses: Pauses | None = None
    shares: tuple[float, float] | None = None
    tuning: frozenset[str] = frozenset()

    @property
    def options(self) -> frozenset[str]:
        """What a simulation of this policy depends on, beside the trace and the cluster."""
        return self.tuning | (_OF_ADJUSTING if self.pauses is not None else frozenset())


# Only who adjusts running jobs pauses them, and looks at their limits.
_OF_ADJUSTING = frozenset({"pause", "pause_in", "overhead", "min_share", "max_share"})
_OF_QUEUES = frozenset({"quanta", "starvation"})


CATALOGUE: dict[str, Entry] = {
    "fifo": Entry(lambda tuning: fifo()),
    "first-fit": Entry(lambda tuning: first_fit()),
    "easy": Entry(lambda tuning: easy_backfill()),
    "conservative": Entry(lambda tuning: conservative_backfill()),
    "tiresias": Entry(lambda tuning: tiresias(quanta=tuning.quanta, starvation=tuning.starvation), tuning=_OF_QUEUES),
    "elastic-tiresias": Entry(
        lambda tuning: elastic_tiresias(
            pending_over=tuning.pending_over, quanta=tuning.quanta, starvation=tuning.starvation
        ),
        pauses=Pauses(1.1, 0.0),
        tuning=_OF_QUEUES | {"pending_over"},
    ),
    "efifo": Entry(
        lambda tuning: elastic_fifo(exact_up_to=tuning.exact_up_to),
        pauses=Pauses(1.0, 1.0),
        shares=(0.25, 4.0),
        tuning=frozenset({"exact_up_to"}),
    ),
    "ebf": Entry(
        lambda tuning: elastic_backfill(exact_up_to=tuning.exact_up_to),
        pauses=Pauses(1.0, 1.0),
        shares=(0.25, 4.0),
        tuning=frozenset({"exact_up_to"}),
    ),
}
"""All policies: the rigid ones, Tiresias rigid and elastic, and Elan's two."""


def named(name: str) -> Entry:
    """The entry of a policy.

    Raises:
        UsageError: for an unknown name.
    """
    if name not in CATALOGUE:
        raise UsageError(f"no policy {name!r}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def limited(jobs: Sequence[Job], *, shares: tuple[float, float] | None) -> tuple[Job, ...]:
    """The jobs with these shares of their requests as limits, or as they are."""
    if shares is None:
        return tuple(jobs)
    return with_limits(jobs, min_share=shares[0], max_share=shares[1])
