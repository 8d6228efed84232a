"""E-FIFO and E-BF: elastic first in first out, and elastic backfilling. Xie et al., *Elan*, 2020, section VI-C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kungfu.errors import UsageError
from kungfu.schedule.elan.admission import admissible, does_not_delay, spare_gpus
from kungfu.schedule.elan.crew import Crew, Setting, allocated, crew_now, joined, prepared
from kungfu.schedule.state import Plan, Policy, State

__all__ = ["elastic_backfill", "elastic_fifo"]


@dataclass(frozen=True)
class _Effort:
    """How much a decision may cost: crews forecast exactly, and waiting jobs tried behind a refused head."""

    exact_up_to: int
    depth: int

    def __post_init__(self) -> None:
        if self.exact_up_to < 0 or self.depth < 0:
            raise UsageError(f"exact_up_to is {self.exact_up_to} and depth {self.depth}: both must be at least 0")


def elastic_fifo(*, exact_up_to: int = 64) -> Policy[Setting]:
    """Admit from the head of the line until the first refusal, then share all GPUs among those who run.

    Jobs run on their ``min_gpus`` to ``max_gpus``; shares are computed anew at every event.

    Args:
        exact_up_to: crews up to this many jobs are forecast exactly when an admission is judged, larger ones by an
            estimate (see ``admission``). A large number makes every decision exact, and a large cluster slow.
    """
    return Policy("efifo", prepared, _deciding(_Effort(exact_up_to, depth=0)))


def elastic_backfill(*, exact_up_to: int = 64, depth: int = 8) -> Policy[Setting]:
    """Like ``elastic_fifo``, but behind a refused head later jobs may start if that does not delay the head.

    A later job must pass the same admission rule, and the head's fewest GPUs must come free no later with it than
    without it.

    Args:
        exact_up_to: see ``elastic_fifo``.
        depth: at most this many of the later jobs that could fit are tried at an event, in order of arrival.
    """
    return Policy("ebf", prepared, _deciding(_Effort(exact_up_to, depth)))


def _deciding(effort: _Effort) -> Callable[[State, Setting], tuple[Plan, Setting]]:
    def decide(state: State, setting: Setting) -> tuple[Plan, Setting]:
        crew = allocated(_admitted(state, setting=setting, effort=effort), setting=setting)
        return Plan(crew.jobs, crew.held), setting

    return decide


def _admitted(state: State, *, setting: Setting, effort: _Effort) -> Crew:
    crew = crew_now(state)
    for place, job in enumerate(state.pending.tolist()):
        if not admissible(crew, job=job, setting=setting, exact_up_to=effort.exact_up_to):
            return _overtaken(state, crew=crew, head=place, setting=setting, effort=effort)
        crew = joined(crew, job=job, setting=setting)
    return crew


def _overtaken(state: State, *, crew: Crew, head: int, setting: Setting, effort: _Effort) -> Crew:
    """The crew with those from behind a refused head who neither delay it nor cost anybody on average."""
    blocked, rest = int(state.pending[head]), state.pending[head + 1 :]
    rest = rest[setting.workload.min_gpus[rest] <= spare_gpus(crew, setting=setting)]
    joining = crew
    for job in rest[: effort.depth].tolist():
        if admissible(joining, job=job, setting=setting, exact_up_to=effort.exact_up_to) and does_not_delay(
            joining, job=job, head=blocked, setting=setting, exact_up_to=effort.exact_up_to
        ):
            joining = joined(joining, job=job, setting=setting)
    return joining
