"""The loader: declares the data of a run's loop, then yields one batch for each call of the step.

A batch is this peer's share of a step, cut at the agreed position and stamped with it. The step checks the stamp, and
refuses a batch that was cut for another position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import Position
from kungfu.training.data.batch_plan import BatchPlan, MicroBatch
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.planned_epochs import PlannedEpochs
from kungfu.training.data.prefetch import Prefetch
from kungfu.training.data.sampler import StepSlice
from kungfu.training.data.stream import Stream
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.step_report import StepPosition
from kungfu.training.graph.variable_io import write_variable
from kungfu.training.loop.loop_metrics import refuse_accumulated
from kungfu.training.loop.step_calls import StepCalls
from kungfu.training.run import Run


def declare_batches(calls: StepCalls, plan: BatchPlan) -> None:
    """Declares that the batches of this run come from the loader, in micro-batches if the plan cuts shares."""
    run, declared, progress = calls.run, calls.run.declared, calls.run.graph_state.progress
    if declared.batch is not None:
        raise UsageError(
            "training.batches() was called twice: a peer that joins runs the program from its top and could not "
            "know which loop the others are in; use one loop with all epochs"
        )
    is_cut = plan.max_local_batch_size is not None
    accumulation = Accumulation(run.graph_state.metrics, run.trained.optimizers) if is_cut else None
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
    """Declares how the program counts its epochs (see `PlannedEpochs`), and gives the policies their number.

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
        between_steps: Performs the exchanges that a kungfu loop has in a new view. They precede an exchange for the
            data on all peers: a peer that lost another one in a step performs them before it reads the data.
    """
    source, sampler, before, last, awaited = plan.source, plan.sampler, -1, None, None
    with closing(Prefetch(plan.load, following=plan.following)) as ahead:
        while not over():
            here = calls.position()
            # The assignment of partitions is state of the job, which a joiner receives with the registered values.
            if isinstance(sampler, PartitionSampler) and here.version not in (0, sampler.version):
                between_steps()
                # Training ended in this view, or peers were lost: the view is another one.
                if over() or not calls.exchange(lambda peers: None) or over():
                    continue
                here = calls.position()
            step_slice = _step_slice(calls, plan, here)
            if step_slice.position.epoch >= plan.epochs:
                return
            if isinstance(source, Stream):
                source.reach(step_slice.position)
            if isinstance(sampler, PartitionSampler):
                sampler.reach(step_slice, calls.run.membership.view.ids if here.version else range(step_slice.size))
            # The last batch was not passed to the step: the position does not advance, and neither would this loop.
            if calls.count == before:
                raise UsageError(
                    "a batch of training.batches() was not given to the function marked @training.step: the loader "
                    "follows the steps that were done, so every batch must become one"
                )
            last, started = _next(plan, here, step_slice, last), before >= 0
            # A peer may have to read for longer than a step may take: it notifies the other peers, which wait for it.
            may_read_long = isinstance(sampler, PartitionSampler) and sampler.may_read_long and here.version > 0
            if may_read_long and awaited != (step_slice.position, here.version):
                if not calls.data_cursor.await_others(partial(ahead.is_loaded, last), exchange=calls.exchange):
                    continue  # peers were lost meanwhile
                awaited = step_slice.position, here.version
            before = calls.count
            batch = ahead.get(last)
            calls.stamps.put(tf.nest.flatten(batch), plan.stamp(last))
            if started:  # after the first batch the view changes, so no later batch can be predicted from it
                ahead.run_ahead(last)
            yield batch


def _step_slice(calls: StepCalls, plan: BatchPlan, here: StepPosition) -> StepSlice:
    return StepSlice(
        Position(here.epoch, here.offset),
        version=here.version,
        # Before this peer is in a view, its batch only serves to trace and warm up, and may be small.
        size=here.size if here.version else calls.run.settings.limits.maximum,
        rank=here.rank,
        global_batch_size=here.global_batch_size or plan.batch_size,
    )


def _next(plan: BatchPlan, here: StepPosition, step_slice: StepSlice, last: MicroBatch | None) -> MicroBatch:
    """The next micro-batch of the slice; the first one if the slice is new, or was cut again."""
    # The same position in the same view: the share continues after the last call of the step.
    same = last is not None and last.step_slice == step_slice
    return plan.micro_batch(step_slice, micro=here.micro if same else 0)


def walk(calls: StepCalls, plan: BatchPlan) -> Iterator[Any]:
    """Yields the batches for the only loop of a program, and then ends training."""
    try:
        yield from loop_batches(calls, plan, over=lambda: calls.run.left or calls.run.stopped)
    except GeneratorExit:  # by `break`, `return` or `sys.exit` in the body of the loop
        calls.abandon()
        raise
    calls.finish()
