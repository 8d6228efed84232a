"""The loader: batches of this peer's share, cut at the agreed position, each with the stamp that the step checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import Position
from kungfu.training.data.batch_plan import BatchPlan, MicroBatch
from kungfu.training.data.prefetch import Prefetch
from kungfu.training.data.sampler import StepSlice
from kungfu.training.data.stamps import Stamps
from kungfu.training.graph.step_report import StepPosition

__all__ = ["batches"]


def batches(
    plan: BatchPlan,
    position: Callable[[], StepPosition],
    stamps: Stamps,
    *,
    over: Callable[[], bool],
    calls: Callable[[], int],
    most_peers: int,
) -> Iterator[Any]:
    """Yields what one call of the step after the other needs, until the epochs are done or training is ``over``.

    Args:
        plan: The data and how it is walked.
        position: Gives the position of the run.
        stamps: Remembers what each batch was cut for.
        over: Whether training has ended on this peer.
        calls: Counts the calls of the step: a batch that was not given to it would come back for ever.
        most_peers: Before this peer is in a view, its batch only serves to trace and warm up; it is as small as with so
            many peers.
    """
    before, last = -1, None
    with closing(Prefetch(plan.load, following=plan.following)) as ahead:
        while not over():
            here = position()
            step_slice = _step_slice(plan, here, most_peers=most_peers)
            if step_slice.position.epoch >= plan.epochs:
                return
            if calls() == before:
                raise UsageError(
                    "a batch of training.batches() was not given to the function marked @training.step: "
                    "the loader follows the steps that were done, so every batch must become one"
                )
            last, started = _next(plan, here, step_slice, last), before >= 0
            before = calls()
            batch = ahead.get(last)
            stamps.put(tf.nest.flatten(batch), plan.stamp(last))
            if started:  # after the first batch the view is another one: nothing can be guessed from it
                ahead.run_ahead(last)
            yield batch


def _step_slice(plan: BatchPlan, here: StepPosition, *, most_peers: int) -> StepSlice:
    return StepSlice(
        Position(here.epoch, here.offset),
        version=here.version,
        size=here.size if here.version else most_peers,
        rank=here.rank,
        global_batch_size=here.global_batch_size or plan.batch_size,
    )


def _next(plan: BatchPlan, here: StepPosition, step_slice: StepSlice, last: MicroBatch | None) -> MicroBatch:
    """The next micro-batch of the slice; the first one where the slice is new, or was cut anew."""
    same = last is not None and last.step_slice == step_slice
    return plan.micro_batch(step_slice, micro=here.micro if same else 0)
