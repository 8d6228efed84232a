"""A modelled job from its first to its last step: its decisions, changes of the view, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kungfu.compiler import CompiledPolicies, FiredRule, compile_policies, fired_rules
from kungfu.compiler.replay import Replay
from kungfu.control import AverageModels, Budget, ScaleLearningRate
from kungfu.control.synchronisation import Synchronisation
from kungfu.policy_definition import Policy
from kungfu.testing.cluster_model import ClusterModel, SimulatedStep
from kungfu.testing.simulated_barrier import SimulatedBarrier
from kungfu.testing.simulated_job import SimulatedJob, agreed_sources, busy_seconds, local_sources, stepped


@dataclass(frozen=True)
class ViewChange:
    """A change of the view of a modelled job.

    Args:
        step: The last step before the change.
        seconds: The time of the change, in seconds since the first step.
        joined: The ids of the peers that joined.
        left: The ids of the peers that left.
        size: The number of peers in the new view.
    """

    step: int
    seconds: float
    joined: tuple[int, ...]
    left: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class SimulatedRun:
    """The result of a finished modelled job.

    Args:
        decisions: The rules that fired, in order.
        changes: The changes of the view.
        size: The number of peers in the last view.
        steps: The number of steps.
        samples: The number of samples.
        seconds: The duration of the whole job.
        peer_seconds: The seconds of all peers in total, each peer counted from the barrier where it joined to the
            barrier where it left.
    """

    decisions: tuple[FiredRule, ...]
    changes: tuple[ViewChange, ...]
    size: int
    steps: int
    samples: int
    seconds: float
    peer_seconds: float


def run_on_model(
    policy: Policy | Sequence[Policy],
    model: ClusterModel,
    *,
    budget: Budget | None = None,
    sync: Synchronisation = "gradients",
) -> SimulatedRun:
    """Runs one policy, or several on one job, on a modelled cluster that carries out their decisions.

    Args:
        policy: The policy, or the policies.
        model: The job and its cluster.
        budget: The job's budget of rescales.
        sync: As for ``kungfu.attach``. The throughput of the model is that of a job that synchronises in this way.

    Raises:
        PolicyError: As for `attach`.

    >>> from kungfu.policies import schedule
    >>> run = run_on_model(schedule({5: 4, 12: 1}), ClusterModel({1: 100, 4: 300}, steps=20))
    >>> [(one.step, one.joined, one.left, one.size) for one in run.changes]
    [(8, (2, 3), (), 4), (13, (), (1, 2, 3), 1)]
    """
    plan = compile_policies([policy] if isinstance(policy, Policy) else policy, budget=budget, sync=sync)
    return simulate(plan, model, sync=sync)


def simulate(
    plan: CompiledPolicies,
    model: ClusterModel,
    *,
    seen: Callable[[SimulatedStep], object] | None = None,
    sync: Synchronisation = "gradients",
) -> SimulatedRun:
    """Runs a plan, compiled for ``sync``, on a modelled cluster; ``seen`` is called with each step before it runs."""
    every = sync.every if isinstance(sync, AverageModels) else 0
    job = SimulatedJob.started(model, max_global_batch=plan.max_global_batch, average_every=every)
    barrier = SimulatedBarrier(job, Replay(plan, size=job.size))
    made, changes = list[FiredRule](), list[ViewChange]()
    while not job.is_over:
        step, peers = job.step, job.peers
        if seen is not None:
            seen(job.position)
        busy = busy_seconds(job)
        if not job.is_synchronising:
            # The peers send each other nothing: no rule is evaluated, and no barrier follows.
            stepped(job, busy)
            barrier.foresee()
            continue
        outcome = barrier.replay.step(local_sources(job, busy), agreed_sources(job))
        decided = list(without_held(fired_rules(plan, outcome, step=step)))
        made += decided
        stepped(job, busy)
        acting = [one for one in decided if one.mode == "acting"]
        factors = [one for one in acting if isinstance(one.action, ScaleLearningRate)]
        for one in factors:
            job.rate_factor = one.value
        posted = [one for one in acting if one not in factors]
        made += barrier.hold(posted, fractions=next(iter(outcome.fractions), ()))
        if job.peers is not peers:
            joined = tuple(peer for peer in job.peers if peer not in peers)
            left = tuple(peer for peer in peers if peer not in job.peers)
            changes.append(ViewChange(step, job.clocks.total_s, joined, left, job.size))
    barrier.finish()
    decisions = tuple(_as_carried_out(one, barrier) for one in made)
    clocks = job.clocks
    return SimulatedRun(
        decisions, tuple(changes), job.size, job.step - 1, job.samples_done, clocks.total_s, clocks.peer_s
    )


def _as_carried_out(fired: FiredRule, barrier: SimulatedBarrier) -> FiredRule:
    """The fired rule, with the ranks that its budget of replacements covered, and the reason if it had no effect."""
    key = fired.rule, fired.step
    return replace(fired, ranks=barrier.ranks.get(key, fired.ranks), unmet=barrier.unmet.get(key, ""))


def without_held(fired: Iterable[FiredRule]) -> Iterator[FiredRule]:
    """The fired rules that no budget held back."""
    return (one for one in fired if one.mode != "held")
