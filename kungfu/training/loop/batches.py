"""The loader: declares the data of a run's loop, then yields one batch for each call of the step.

A batch is this peer's share of a step, cut at the job's position and stamped with this position. The step checks the
stamp, and refuses a batch that was cut for another position. A separate thread loads the predicted next batches while a
step runs.
"""

from __future__ import annotations

import atexit
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, Generic, TypeVar

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import Position
from kungfu.training.data.batch_plan import BatchPlan
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.sampler import StepSlice
from kungfu.training.data.stream import Stream
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.combined_metrics import refuse_accumulated
from kungfu.training.graph.step_report import PlannedEpochs, StepPosition
from kungfu.training.graph.variable_io import write_variable
from kungfu.training.loop.step_calls import StepCalls
from kungfu.training.run import Run

# One batch ready, one being loaded: this hides an occasional slow read, and bounds memory.
_AHEAD = 2
_END_S = 10.0

Key = TypeVar("Key")
_Wanted = SimpleQueue[tuple[Any, "Future[Any]"] | None]


def declare_batches(calls: StepCalls, plan: BatchPlan) -> None:
    """Declares that the run's batches come from the loader; as micro-batches if ``plan`` limits the local batch."""
    run, declared, progress = calls.run, calls.run.declared, calls.run.graph_state.progress
    if declared.batch is not None:
        raise UsageError(
            "training.batches() was called twice: a peer that joins runs the program from its top and could not "
            "know which loop the others are in; use one loop with all epochs"
        )
    is_cut = plan.max_local_batch_size is not None
    measures = "micro_batch_variance" in run.plan.source_kinds
    accumulation = (
        Accumulation(run.graph_state.metrics, run.trained.optimizers, measures_variance=measures) if is_cut else None
    )
    refuse_accumulated(declared.metrics, accumulation)
    declared.batch, declared.accumulation = plan.batch_size, accumulation
    declared.planned = PlannedEpochs(plan.samples, plan.epochs, plan.remainder == "drop")
    declared.data = {"samples": plan.samples, **plan.described}
    progress.samples.assign(plan.samples)
    if isinstance(plan.sampler, PartitionSampler) and run.models is not None:
        raise UsageError(
            "training.batches() was given kf.data.partitions in a run with sync=average_models(...): the peers "
            "exchange who reads what between steps, where their models differ; read by index (kf.data.tfrecords), "
            'or attach with sync="gradients"'
        )
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
    """Declares how the program counts its epochs (see `PlannedEpochs`), and informs policies of the number of epochs.

    This run may have fewer epochs than its loader plans: a callback may have restored the result of earlier epochs.
    """
    assert run.declared.planned is not None
    run.declared.planned = replace(run.declared.planned, done_before=done_before, epochs=epochs, fit=fit)
    write_variable(run.graph_state.progress.epochs, epochs)


def loop_batches(
    calls: StepCalls, plan: BatchPlan, *, over: Callable[[], bool], between_steps: Callable[[], object] = lambda: None
) -> Iterator[Any]:
    """Yields the batches for successive calls of the step, until the epochs are done or training is ``over``.

    Args:
        over: Returns True if no further step should be done.
        between_steps: Runs the collectives that a new view needs. Every peer, even one whose step was broken by the
            loss of another peer, must run them before the peers exchange their positions in the data.
    """
    source, sampler, before, last, awaited = plan.source, plan.sampler, -1, None, None
    with closing(Prefetch(plan.load, following=plan.following)) as ahead:
        while not over():
            here = calls.position()
            # The assignment of partitions is state of the job, which a joiner receives with the registered values.
            if isinstance(sampler, PartitionSampler) and here.version not in (0, sampler.version):
                between_steps()
                # Training ended in this view, or peers were lost and the view has changed.
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
            # The same position in the same view: the share continues after the last call of the step.
            micro = here.micro if last is not None and last.step_slice == step_slice else 0
            last, started = plan.micro_batch(step_slice, micro=micro), before >= 0
            # A peer may have to read for longer than a step may take: it notifies the other peers, which then wait.
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


def walk(calls: StepCalls, plan: BatchPlan) -> Iterator[Any]:
    """Yields the batches for the only loop of a program, and then ends training."""
    try:
        yield from loop_batches(calls, plan, over=lambda: calls.run.left or calls.run.stopped)
    except GeneratorExit:  # by `break`, `return` or `sys.exit` in the body of the loop
        calls.abandon()
        raise
    calls.finish()


# ---- loading ahead ---------------------------------------------------------------------------------------------------


class Prefetch(Generic[Key]):
    """Loads the batch with the requested key, then up to two batches whose keys ``following`` predicts; in one thread.

    If another key than the predicted one is requested, the batches loaded ahead are discarded.
    """

    def __init__(self, load: Callable[[Key], Any], *, following: Callable[[Key], Key | None]) -> None:
        self._following = following
        self._wanted: _Wanted = SimpleQueue()
        self._guesses: deque[tuple[Key, Future[Any]]] = deque()
        # A daemon thread: a read that hangs must not keep a failed program from ending.
        self._thread = Thread(target=_serve, args=(self._wanted, load), name="kungfu-loader", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread killed by Python inside TensorFlow would change the exit code

    def get(self, key: Key) -> Any:
        """Returns the batch with this key, once it is loaded; raises the error if the user's code fails to load it."""
        self._ask_first(key)
        return self._guesses.popleft()[1].result()

    def is_loaded(self, key: Key, within_s: float) -> bool:
        """True if the loading of this key's batch ends within this many seconds; pass the same key to `get` next."""
        self._ask_first(key)
        return bool(wait([self._guesses[0][1]], within_s).done)

    def _ask_first(self, key: Key) -> None:
        # Nothing, or another key, was predicted: the membership or the batch size has changed meanwhile.
        if not self._guesses or self._guesses[0][0] != key:
            self._forget()
            self._ask(key)

    def run_ahead(self, key: Key) -> None:
        """Starts loading the batches that follow the batch with this key, which is in use."""
        newest: Key | None = self._guesses[-1][0] if self._guesses else key
        while len(self._guesses) < _AHEAD:
            newest = self._following(newest) if newest is not None else None
            if newest is None:  # the end of the last epoch
                return
            self._ask(newest)

    def close(self) -> None:
        """Ends the thread, after its current read; idempotent."""
        atexit.unregister(self.close)
        self._forget()
        self._wanted.put(None)
        if self._thread is current_thread():  # an abandoned loop may be collected in any thread, also in this one
            return
        self._thread.join(_END_S)
        if self._thread.is_alive():
            warnings.warn(
                f"training.batches(): loading a batch that nobody needs has not ended within {_END_S:g} s; the program "
                "goes on without waiting for it",
                RuntimeWarning,
                stacklevel=2,
            )

    def _ask(self, key: Key) -> None:
        future: Future[Any] = Future()
        self._guesses.append((key, future))
        self._wanted.put((key, future))

    def _forget(self) -> None:
        for _, future in self._guesses:
            future.cancel()
        self._guesses.clear()


def _serve(wanted: _Wanted, load: Callable[[Any], Any]) -> None:
    while (task := wanted.get()) is not None:
        key, future = task
        if not future.set_running_or_notify_cancel():  # a discarded prediction
            continue
        try:
            future.set_result(load(key))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks for it
            future.set_exception(error)
        del task, key, future  # the batch belongs to the caller
