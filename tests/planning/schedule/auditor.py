"""An accountant who trusts nothing but allocations: it integrates work and GPU seconds on its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from kungfu_planning.schedule import ClusterJob, ClusterPolicy, Pauses, SimulationResult, State, simulate
from kungfu_planning.schedule.state import JobProgress
from tests.planning.schedule.instances import rate_of


@dataclass
class Audit:
    """What an auditor saw: work done and GPU seconds by job, changes of running jobs, and every state."""

    jobs: tuple[ClusterJob, ...]
    pauses: Pauses
    work: list[float] = field(default_factory=list)
    gpu_seconds: list[float] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    paused_until: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        zeros = [0] * len(self.jobs)
        self.work, self.gpu_seconds = [0.0] * len(zeros), [0.0] * len(zeros)
        self.changes, self.held, self.paused_until = list(zeros), list(zeros), [0.0] * len(zeros)
        self.now = 0.0

    def see(self, state: State) -> None:
        """Credit the time since the last state, then note what changed."""
        elapsed = state.now_s - self.now
        for index, (job, after) in enumerate(zip(self.jobs, state.progress.gpus.tolist(), strict=True)):
            trained = max(0.0, state.now_s - max(self.now, self.paused_until[index]))
            self.gpu_seconds[index] += self.held[index] * elapsed
            self.work[index] += rate_of(job.curve, gpus=self.held[index]) * trained * (1 - self.pauses.overhead)
            self._note(index, after, now=state.now_s)
        self.now = state.now_s

    def _note(self, index: int, after: int, *, now: float) -> None:
        before, self.held[index] = self.held[index], after
        if before and after and before != after:
            self.changes[index] += 1
            pause = self.pauses.out_s if after > before else self.pauses.in_s
            self.paused_until[index] = max(self.paused_until[index], now + pause)
        elif not before or not after:
            self.paused_until[index] = now


def audited(
    jobs: tuple[ClusterJob, ...], *, gpus: int, policy: ClusterPolicy, pauses: Pauses
) -> tuple[SimulationResult, Audit]:
    """Simulate with an auditor watching."""
    audit = Audit(jobs, pauses)
    return simulate(jobs, gpus=gpus, policy=policy, pauses=pauses, watch=audit.see), audit


def seen(
    jobs: tuple[ClusterJob, ...], *, gpus: int, policy: ClusterPolicy, pauses: Pauses | None = None
) -> list[State]:
    """Every committed state, each with its own copy of what stands where."""
    states: list[State] = []

    def keep(state: State) -> None:
        copied = JobProgress(*(vector.copy() for vector in vars(state.progress).values()))
        states.append(
            State(state.now_s, state.gpus, state.workload, copied, state.running, state.pending, state.arrived)
        )

    simulate(jobs, gpus=gpus, policy=policy, pauses=pauses, watch=keep)
    return states
