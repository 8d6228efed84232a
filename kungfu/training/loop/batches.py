"""The batches of a run's loop: declares the loader's data, then yields one batch for each call of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from kungfu.errors import UsageError
from kungfu.training.data import BatchPlan, batches
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.planned_epochs import PlannedEpochs
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.variable_io import write_variable
from kungfu.training.loop.loop_metrics import refuse_accumulated
from kungfu.training.loop.step_calls import StepCalls
from kungfu.training.run import Run


def declare_batches(calls: StepCalls, plan: BatchPlan, *, accumulation: Accumulation | None = None) -> None:
    """Declares that the batches of this run come from the loader, in micro-batches if these are accumulated."""
    run, declared, progress = calls.run, calls.run.declared, calls.run.graph_state.progress
    refuse_accumulated(declared.metrics, accumulation)
    declared.batch, declared.accumulation = plan.batch_size, accumulation
    declared.planned = PlannedEpochs(plan.samples, plan.epochs, plan.remainder == "drop")
    declared.data = {"samples": plan.samples, **plan.described}
    progress.samples.assign(plan.samples)
    if isinstance(plan.sampler, PartitionSampler):  # the assignment of readers is part of the state
        held = plan.sampler.make_variable(most_peers=run.settings.limits.maximum)
        if run.registry.is_sealed:
            raise UsageError(
                "training.batches() was given kf.data.partitions after training.resume(), which resumes who reads "
                "what too: call training.batches() first, then training.resume(), and then begin the loop"
            )
        run.registry.register_variable("data/partitions", held, kind="shared")
    progress.epochs.assign(plan.epochs)
    progress.drops.assign(plan.remainder == "drop")
    calls.data_cursor.follow(plan.source)


def count_epochs(run: Run, *, done_before: int, epochs: int, fit: int) -> None:
    """Declares how the program counts its epochs, see `PlannedEpochs`, and gives the policies their number.

    This run may have fewer epochs than its loader plans: a callback may have restored the result of earlier ones.
    """
    assert run.declared.planned is not None
    run.declared.planned = replace(run.declared.planned, done_before=done_before, epochs=epochs, fit=fit)
    write_variable(run.graph_state.progress.epochs, epochs)


def loop_batches(
    calls: StepCalls, plan: BatchPlan, *, over: Callable[[], bool], between_steps: Callable[[], object] = lambda: None
) -> Iterator[Any]:
    """The batches for successive calls of the step, until the epochs are done or training is ``over``.

    Args:
        calls: The calls of the step.
        plan: The data and their order.
        over: Returns True if no further step should be done.
        between_steps: Does the exchanges that a kungfu loop has in a new view. If the data need an exchange too, these
            come first, on all peers: a peer that lost another one in a step does them before it reads the data.
    """
    run = calls.run

    def sync_view() -> bool:
        between_steps()
        return over() or calls.exchange(lambda peers: None)

    return batches(
        plan,
        calls.position,
        calls.stamps,
        over=over,
        calls=lambda: calls.count,
        most_peers=run.settings.limits.maximum,
        members=lambda: run.membership.view.ids,
        sync_view=sync_view,
        await_others=partial(calls.data_cursor.await_others, exchange=calls.exchange),
    )


def walk(calls: StepCalls, plan: BatchPlan) -> Iterator[Any]:
    """The batches for the only loop of a program; training is over at its end."""
    try:
        yield from loop_batches(calls, plan, over=lambda: calls.run.left or calls.run.stopped)
    except GeneratorExit:  # by `break`, `return` or `sys.exit` in the body of the loop
        calls.abandon()
        raise
    calls.finish()
