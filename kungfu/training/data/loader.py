"""The loader: batches of this peer's share, cut at the agreed position, each stamped with that position.

The step checks the stamp, and refuses a batch that was cut for another position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import Position, Stamp
from kungfu.training.data.batch_plan import BatchPlan, MicroBatch
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.prefetch import Prefetch
from kungfu.training.data.sampler import StepSlice
from kungfu.training.data.stream import Stream
from kungfu.training.graph.step_report import StepPosition

# A batch from elsewhere than training.batches is never stale, and is its peer's whole share of the step.
_UNSTAMPED = Stamp(-1, -1, -1)
_UNMARKED = (None, _UNSTAMPED)


class Stamps:
    """The stamps of one run. A batch's tensors carry its stamp; if it was mapped, the most recent stamp applies."""

    def __init__(self) -> None:
        self._last: Stamp | None = None

    def put(self, tensors: Sequence[Any], stamp: Stamp) -> None:
        """Remembers the stamp of these tensors as long as they exist."""
        mark = (self, stamp)
        for tensor in tensors:
            tensor._kungfu_stamp = mark
        self._last = stamp

    def of(self, tensors: Sequence[Any]) -> Stamp:
        """The stamp of a step's arguments; the last one given out if none of them has one."""
        for tensor in tensors:
            run, stamp = getattr(tensor, "_kungfu_stamp", _UNMARKED)
            if run is self:
                return stamp
        return _UNSTAMPED if self._last is None else self._last


def is_stale(stamp: Stamp, here: StepPosition) -> bool:
    """True for a batch that was cut for another epoch, position or view than the current ones.

    A micro-batch must be the first of its step, or follow the last finished one.
    """
    in_force = (here.epoch, here.offset, here.version)
    elsewhere = stamp.epoch >= 0 and (stamp.epoch, stamp.offset, stamp.version) != in_force
    return elsewhere or (stamp.micro > 0 and stamp.micro != here.micro)


def batches(
    plan: BatchPlan,
    position: Callable[[], StepPosition],
    stamps: Stamps,
    *,
    over: Callable[[], bool],
    calls: Callable[[], int],
    most_peers: int,
    members: Callable[[], Sequence[int]],
    sync_view: Callable[[], bool],
    await_others: Callable[[Callable[[float], bool]], bool],
) -> Iterator[Any]:
    """Yields the batches for successive calls of the step, until the epochs are done or training is ``over``.

    Args:
        plan: The data and their order.
        position: Returns the position of the run.
        stamps: Remembers the stamp of each batch.
        over: Returns True if training has ended on this peer.
        calls: Counts the calls of the step: a batch that was not passed to the step would be repeated endlessly.
        most_peers: The number of peers assumed before this peer is in a view, when its batch only serves to trace and
            warm up, and may be small.
        members: Returns the ids of the peers of the view, by rank.
        sync_view: Synchronises registered values in a new view, with all its peers; False if peers were lost meanwhile.
        await_others: Waits until all peers of the view have their batch; False if peers were lost meanwhile. Its
            argument is a function that returns True if this peer has its batch, within a given number of seconds.
    """
    before, last, awaited = -1, None, None
    with closing(Prefetch(plan.load, following=plan.following)) as ahead:
        while not over():
            here = position()
            # The assignment of partitions is state of the job, which a joiner receives with the registered values.
            if isinstance(plan.sampler, PartitionSampler) and here.version not in (0, plan.sampler.version):
                if not sync_view() or over():
                    continue  # peers were lost: the view is another one, or training ended in it
                here = position()
            step_slice = _step_slice(plan, here, most_peers=most_peers)
            if step_slice.position.epoch >= plan.epochs:
                return
            if isinstance(plan.source, Stream):
                plan.source.reach(step_slice.position)
            if isinstance(plan.sampler, PartitionSampler):
                plan.sampler.reach(step_slice, members() if here.version else range(step_slice.size))
            # The last batch was not passed to the step: the position does not advance, and neither would this loop.
            if calls() == before:
                raise UsageError(
                    "a batch of training.batches() was not given to the function marked @training.step: the loader "
                    "follows the steps that were done, so every batch must become one"
                )
            last, started = _next(plan, here, step_slice, last), before >= 0
            # A peer may have to read for longer than a step may take: it notifies the other peers, which wait for it.
            if _may_read_long(plan, step_slice) and awaited != (step_slice.position, step_slice.version):
                if not await_others(partial(ahead.is_loaded, last)):
                    continue
                awaited = step_slice.position, step_slice.version
            before = calls()
            batch = ahead.get(last)
            stamps.put(tf.nest.flatten(batch), plan.stamp(last))
            if started:  # after the first batch the view changes, so no later batch can be predicted from it
                ahead.run_ahead(last)
            yield batch


def _may_read_long(plan: BatchPlan, step_slice: StepSlice) -> bool:
    return isinstance(plan.sampler, PartitionSampler) and plan.sampler.may_read_long and step_slice.version > 0


def _step_slice(plan: BatchPlan, here: StepPosition, *, most_peers: int) -> StepSlice:
    return StepSlice(
        Position(here.epoch, here.offset),
        version=here.version,
        size=here.size if here.version else most_peers,
        rank=here.rank,
        global_batch_size=here.global_batch_size or plan.batch_size,
    )


def _next(plan: BatchPlan, here: StepPosition, step_slice: StepSlice, last: MicroBatch | None) -> MicroBatch:
    """The next micro-batch of the slice; the first one if the slice is new, or was cut again."""
    # The same position in the same view: the share continues after the last call of the step.
    same = last is not None and last.step_slice == step_slice
    return plan.micro_batch(step_slice, micro=here.micro if same else 0)
