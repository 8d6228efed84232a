"""The object returned by ``attach``: the step, the average and the batches of one training run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import update_wrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import CheckpointFolder
from kungfu.signal.source_location import location_of_caller
from kungfu.training.data import Remainder, make_batch_plan
from kungfu.training.graph.average import SummedTotals, average
from kungfu.training.graph.combined_metrics import Combination, LoopMetrics, refuse_accumulated
from kungfu.training.graph.gradient_message import Averaging
from kungfu.training.graph.program_variables import publish
from kungfu.training.loop import barrier
from kungfu.training.loop.batches import declare_batches, walk
from kungfu.training.loop.step_calls import SKIPPED, Skipped, StepCalls
from kungfu.training.state.checkpoint_manager import CheckpointRequest
from kungfu.training.state.registry import Kind, Rescaled

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Nest = TypeVar("Nest")
Function = TypeVar("Function", bound=Callable[..., Any])


def _not_converted(function: Function) -> Function:
    """Excludes a function from AutoGraph; unlike TensorFlow's decorator, keeps its types."""
    return cast("Function", tf.autograph.experimental.do_not_convert(function))


class Training:
    """One training run, attached to its model and optimizer; made by ``kungfu.attach``."""

    SKIPPED: Final = SKIPPED

    def __init__(self, calls: StepCalls) -> None:
        self._run, self._calls = calls.run, calls

    @property
    def rank(self) -> int | None:
        """This peer's rank in the view, 0..size-1; ``None`` once a decision has removed this peer."""
        return self._run.rank

    @property
    def peer(self) -> int:
        """This peer's number in the job, which is never reused; 0 for a program that runs alone."""
        return self._run.trained.peer

    @property
    def size(self) -> int:
        """The number of peers in the view."""
        return self._run.size

    @property
    def is_tracing(self) -> bool:
        """True in code that is part of the step, while the step is being traced or runs op by op."""
        return self._run.trace.is_under_way

    @property
    def step_number(self) -> int:
        """The number of steps that the job has done, which is also the number of its last step; equal on all peers."""
        return self._run.steps()

    @property
    def epoch(self) -> int:
        """The number of finished epochs of ``batches``, which is also the epoch of the next step, counted from 0."""
        return self._calls.position().epoch

    @property
    def left(self) -> bool:
        """True once a decision has removed this peer: this peer's loop has ended, and the other peers continue."""
        return self._run.left

    @property
    def stopped(self) -> bool:
        """True once a policy, or the method `stop`, has ended training on all peers."""
        return self._run.stopped

    @overload
    def step(self, function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned | Skipped]: ...

    @overload
    def step(
        self, *, averages: int
    ) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned | Skipped]]: ...

    def step(self, function: Callable[..., Any] | None = None, *, averages: int = 1) -> Callable[..., Any]:
        """Turns a function of one batch into a training step, followed by the rules and, if requested, a barrier.

        The first call traces the function. Under ``kungfu-run`` it also runs the function once on a copy of the state,
        without prints, summaries or calls into Python, and then waits for the other peers.

        Args:
            function: Computes gradients, passes them through ``average`` and applies the means. It may return tensors,
                or nothing.
            averages: The number of calls of ``average`` in each step, directly in the step and under no condition. It
                is greater than 1, for example, in a step with critic steps, or with the second gradient of
                sharpness-aware minimisation. The values for the policies ride on the last message; if a message fails,
                the step is undone on all peers.

        Returns:
            The step, with the function's signature; without ``function``, as in ``@training.step(averages=2)``, a
            decorator. A call returns ``training.SKIPPED`` if its batch was cut for another view; the next batch fits.
            A call also returns ``training.SKIPPED`` if peers were lost in it; in this case the function's assignments
            after ``average`` are not made.

        Raises:
            UsageError: The function cannot be traced, averages more or less often than declared, or the run already has
                a step.
            PeerFailure: Peers were lost, and too few are left to continue; the error names the lost peers.
            DeadlineExceeded: Peers were late; the error names these peers.

        Cost:
            With several averages, a message for each average, and a copy of the variables written before the last.
        """
        if not isinstance(averages, int) or isinstance(averages, bool) or averages < 1:
            raise UsageError(f"training.step(averages={averages!r}): must be an integer of at least 1")

        def mark(marked: Callable[..., Any]) -> Callable[..., Any]:
            self._calls.mark(marked.__name__, averages=averages)
            step = self._calls.call

            def call(*args: Any, **kwargs: Any) -> Any:
                return step(marked, args, kwargs)

            return update_wrapper(call, marked)

        return mark if function is None else mark(function)

    @_not_converted
    def average(self, gradients: Nest, *, loss: Any) -> Nest:
        """Averages gradients over all samples of a step, from each peer's gradients over its share; a collective.

        Call this method inside a function marked ``@training.step``, as often as ``step(averages=...)`` declares.

        Args:
            gradients: Any nest; ``None`` stays ``None``, and sparse gradients of at most 256 MiB in dense form become
                dense. All gradients are weighted by the peer's share of the step's samples, so uneven slices result in
                the gradient of the whole batch.
            loss: This peer's mean loss, a scalar. If a step averages several times, the policies see the loss and the
                gradients of the last average.

        Returns:
            The means in the same structure, equal on all peers.

        Raises:
            UsageError: There is no gradient, a sparse gradient is too large, or the call is under a condition.

        Cost:
            One message, which also carries the policies' signals.
        """
        run, declared = self._run, self._run.declared

        def last(averaging: Averaging) -> Any:
            holders = [one for one in (run.memory.sums, declared.metrics) if one is not None]
            summed = [SummedTotals(one.outgoing(), one.conclude) for one in holders]
            more: dict[str, Any] = {"accumulation": declared.accumulation, "waited": run.trace.waited}
            return average(averaging, gradients, loss=loss, summed=summed, **more)

        return cast("Nest", run.average(gradients, last))

    @_not_converted
    def publish(self, name: str, value: Any) -> None:
        """Publishes a number computed by the step, for policies that declare it with ``training.published(name)``.

        Call this method inside a function marked ``@training.step``, before ``training.average()``, once for each name.
        The call may be in a nested function or a branch; in a loop the last value counts. A name that no policy uses
        costs nothing.

        Args:
            name: The name declared by the policies.
            value: A scalar of the declared kind: a float of any width, an integer, or a bool.

        Raises:
            UsageError: The call is outside of a step, where ``training.feed`` is the right function.
            PolicyError: The value has another shape or dtype than declared, or the name was already published in this
                step. A declared name that the step does not publish is refused by ``average``. The error names the
                policy and the line.

        Cost:
            Two small ops; no message.

        >>> import keras, kungfu as kf, tensorflow as tf
        >>> model, optimizer = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        >>> @kf.policy
        ... def stop_when_flat(training):
        ...     slope = kf.ops.all_reduce(training.published("slope"), "mean")
        ...     return kf.control.always().when(slope < 1.0).stop()
        >>> training = kf.attach(model, optimizer, policies=[stop_when_flat()])
        >>> @training.step
        ... def train_step(x):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean(model(x) ** 2)
        ...     grads = tape.gradient(loss, model.trainable_variables)
        ...     training.publish("slope", tf.linalg.global_norm(grads))
        ...     grads = training.average(grads, loss=loss)
        ...     optimizer.apply_gradients(zip(grads, model.trainable_variables))
        """
        publish(self._run.published, self._run.trace, name, value)

    def feed(self, name: str, value: Any) -> None:
        """Feeds a number known between two steps to policies that declare the number with ``training.fed(name)``.

        Examples are a price, a validation accuracy, or the hour. Rank 0's number rides on the message of the next step,
        and stays valid until rank 0 feeds another number: also after rescales, for joiners, in checkpoints, and after
        the loss of rank 0. Other peers may feed numbers too, since the same program runs on all peers; their numbers
        are ignored. Any thread may call this method. A name that no policy uses is ignored, with a remark.

        Args:
            name: The name declared by the policies.
            value: A finite number in the range of float32.

        Raises:
            PolicyError: The value is not a number, or not finite. The error names the policy and the line.
            UsageError: The call is inside a function that is being traced, or after training was over.

        Cost:
            Next to nothing; no message.

        >>> import keras, kungfu as kf
        >>> @kf.policy
        ... def stop_when_dear(training):
        ...     return kf.control.always().when(training.fed("price", unit="dollars/hour") > 3.0).stop()
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> training = kf.attach(model, keras.optimizers.SGD(0.1), policies=[stop_when_dear()])
        >>> training.feed("price", 2.75)
        """
        _refuse_traced(f"feed({name!r})", "give what the step computes to training.publish(name, value)")
        if self._calls.is_finished:
            raise UsageError(f"training.feed({name!r}) was called after training was over: no step follows")
        self._run.fed.feed(name, value, where=location_of_caller())

    def metrics(self, *metrics: Any, combine: Mapping[str, Combination] = MappingProxyType({})) -> None:
        """Combines Keras metrics over the job: after a step the metrics contain the results of all peers in the epoch.

        Call this method once, with all metrics, between ``attach`` and the first step. In the step, call
        ``update_state`` of each metric before ``training.average()``; after a step, ``result()`` returns the job's
        value on every peer. With ``training.batches()`` the metrics restart with each epoch; otherwise they continue
        over the run. The next step discards updates made outside of the step.

        Args:
            metrics: Built Keras metrics. The states of Keras' own metrics that store sums are added up over the peers.
            combine: The combination of the states of other metrics, by metric name; as in ``kf.keras.attach``.

        Raises:
            UsageError: A metric has no state yet, or the combination of its state is unknown. Also raised in the step
                if a metric is updated after ``training.average()``, or in a branch. The error names the metric.

        Cost:
            The state rides on the message of the gradients; float64 and integers need a separate message.

        On rescale:
            A joiner receives the states, which retain the contributions of peers that left or were lost.

        >>> import keras, kungfu as kf, tensorflow as tf
        >>> model, optimizer = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        >>> training, error = kf.attach(model, optimizer), keras.metrics.MeanAbsoluteError()
        >>> training.metrics(error)
        >>> @training.step
        ... def train_step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         predicted = model(x)
        ...         loss = tf.reduce_mean((predicted - y) ** 2)
        ...     error.update_state(y, predicted)
        ...     grads = tape.gradient(loss, model.trainable_variables)
        ...     grads = training.average(grads, loss=loss)
        ...     optimizer.apply_gradients(zip(grads, model.trainable_variables))
        """
        run, declared = self._run, self._run.declared
        if declared.metrics is not None:
            raise UsageError("training.metrics() was called twice: call it once, with all metrics")
        if run.models is not None:
            raise UsageError(
                "training.metrics() in a run with sync=average_models(...): the peers combine metrics in every "
                "step, but send each other nothing in most steps; publish a number for the policies by "
                'training.publish(), or attach with sync="gradients"'
            )
        given = LoopMetrics(metrics, combine, run.graph_state, run.trace)
        refuse_accumulated(given, declared.accumulation)
        declared.metrics = given
        given.watch()
        for index, total in enumerate(given.job.totals):
            self.register(f"metrics/{index}", total)

    def batches(
        self,
        data: Any,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        samples: int | None = None,
        load: Callable[[Any], Any] | None = None,
        readers: int = 1,
        remainder: Remainder = "keep",
        max_local_batch_size: int | None = None,
    ) -> Iterator[Any]:
        """Yields this peer's share of the data for each step; every sample is used exactly once per epoch.

        A background thread loads the next batches while the step runs. Use only one such loop in a program, since a
        joiner runs the program from its top.

        Args:
            data: A nest of arrays with one entry per sample. Or a sequence of records, such as file names, each of
                which ``load`` converts to a nest of arrays; any object with a length and items is a sequence. Or a
                function from an int64 array of indices to their samples, as tensors or as a ``tf.data.Dataset`` with
                one element per sample.
            batch_size: The initial batch size of the whole job, in samples.
            epochs: The number of passes over the data.
            seed: The seed from which each epoch's order is derived.
            samples: The number of samples, only for a function of indices.
            load: Converts one record to a nest of arrays.
            readers: The number of threads that call ``load`` at once, for the records of a batch; with more than one
                thread, ``load`` must be thread-safe.
            remainder: "keep" makes a smaller last step of the samples left in an epoch; "drop" omits these samples.
            max_local_batch_size: The maximum number of a peer's samples in one call of the step. A larger share is
                split into micro-batches, each of which is one call of the step. Only the last micro-batch averages over
                the peers, updates through the attached optimizers, and counts as a step; in the other calls
                ``average`` returns zeros.

        Returns:
            An iterator over the batches for successive calls of the step.

        Raises:
            UsageError: An argument is invalid, the step was not called with a batch, or an optimizer accumulates
                gradients itself although ``max_local_batch_size`` is set. Also raised at the first step, if the samples
                of arrays have another order on this peer.
            Exception: An error of loading, raised from the loop, with a note that identifies the samples.

        Cost:
            With ``max_local_batch_size``, a second copy of the gradients.

        On rescale:
            All peers follow the same position, so no sample is lost or repeated when peers join or leave.
        """
        plan = make_batch_plan(
            data, batch_size=batch_size, epochs=epochs, seed=seed, samples=samples, load=load, readers=readers,
            remainder=remainder, max_local_batch_size=max_local_batch_size,
        )  # fmt: skip
        declare_batches(self._calls, plan)
        return walk(self._calls, plan)

    def register(self, name: str, get: Any, set: Any = None, *, kind: Kind = "shared", room_bytes: int = 16384) -> None:
        """Adds further state of the program to the training state, under a unique name.

        The value is part of checkpoints. Peers synchronise it before the step that follows a barrier: ``get`` is called
        then, and ``set`` if the common value differs. Call this method between ``attach`` and the first step, in the
        same order on all peers.

        Args:
            name: A name used for this value only.
            get: Returns the value: a ``bool``, ``int``, ``float``, a NumPy array of numbers with constant shape and
                dtype, ``bytes``, or a JSON value (``None``, ``str``, ``list``, ``dict`` with ``str`` keys). A
                ``tf.Variable`` of numbers may replace both functions.
            set: Sets the value that it receives.
            kind: "shared": equal on all peers and compared after every barrier. "averaged": floating-point; local
                between barriers, which assign the mean over peers. "local": always local; a checkpoint contains rank
                0's value, which a resumed job restores on peer 0.
            room_bytes: The maximum number of bytes of ``bytes``, or of the JSON text.

        Raises:
            UsageError: The name, the value or the time of the call is invalid. Also raised in a later step, if shared
                values differ.

        Cost:
            Nothing in a step. After a barrier, 64 bytes per shared value are sent; in a new view, all the values.

        On rescale:
            A joiner loads shared values; after a loss all peers load the values of the most advanced peer.

        Reference:
            Xie et al., *Elan: Towards Generic and Efficient Elastic Training for Deep Learning*, 2020, table III.

        >>> import keras, kungfu as kf
        >>> model, best = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), {"loss": 9.0, "step": 0}
        >>> training = kf.attach(model, keras.optimizers.SGD(0.1))
        >>> training.register("best", lambda: best, best.update)
        """
        self._run.registry.register(name, get, set, kind=kind, room_bytes=room_bytes)

    def on_rescale(self, function: Callable[[Rescaled], Any]) -> Callable[[Rescaled], Any]:
        """Registers a function to be called on every peer after each change of membership, such as growth or recovery.

        The function is called before the next step, once registered values are synchronised in the new view. On a
        joiner it is called when the joiner enters: ``change`` is "joined", and ``size_before`` is 0. It is not called
        for the first view, nor on a peer that leaves.

        Args:
            function: Receives a ``Rescaled``. Its changes to shared state must be the same on all peers. An exception
                becomes a ``UsageError`` that names the function.

        Returns:
            The function, so that this method also works as a decorator.
        """
        self._run.hooks.add(function)
        return function

    def checkpoint(self, path: str | os.PathLike[str] | None = None, *, keep: int = 3) -> None:
        """Requests a checkpoint of the whole training state, at the barrier after the next step.

        Variables, optimizers' slots, shared folds, averaged statistics, the learning rate's ramp, seeds, the position
        in the data and registered values are written to ``path/step-N``, in the format of a ``tf.train.Checkpoint``
        with ``model`` and ``optimizer``; ``path/latest`` names the newest checkpoint. Only rank 0's call has an effect,
        and rank 0 writes while all peers train; other peers may call this method too.

        Args:
            path: The folder; by default the folder of ``kungfu-run --checkpoints``, or ``checkpoints`` for a program
                that runs alone.
            keep: The number of newest checkpoints to keep.

        Raises:
            UsageError: ``keep`` is not at least 1.

        Cost:
            A barrier.
        """
        if not isinstance(keep, int) or keep < 1:
            raise UsageError(f"training.checkpoint(keep={keep!r}): must be an integer of at least 1")
        folder = None if path is None else CheckpointFolder(Path(path).absolute(), keep)
        self._run.checkpoints.request(CheckpointRequest("training.checkpoint", folder))
        barrier.ask(self._run)

    def stop(self, reason: str = "") -> None:
        """Ends training on all peers after the same step, at the latest after the second step from now.

        Only rank 0's call has an effect. Other peers may call this method too, since the same program runs on all
        peers. Afterwards ``stopped`` is True, and ``batches`` ends. If rank 0 is lost first, the new rank 0 makes the
        request, provided that it has called this method too. A call after the end of training does nothing.

        Args:
            reason: The text that the record of the run shows in place of the name of a deciding rule.

        Raises:
            UsageError: The call is inside a function that TensorFlow traces.

        Cost:
            A barrier.

        >>> import keras, kungfu as kf, numpy as np, tensorflow as tf
        >>> model, optimizer = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        >>> training = kf.attach(model, optimizer)
        >>> @training.step
        ... def train_step(x):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean(model(x) ** 2)
        ...     grads = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        ...     optimizer.apply_gradients(zip(grads, model.trainable_variables))
        >>> for x in training.batches(np.ones((8, 1), np.float32), batch_size=2, epochs=100, seed=0):
        ...     train_step(x)
        ...     if training.step_number == 5:
        ...         training.stop("the budget is spent")
        >>> training.stopped, training.step_number, training.epoch
        (True, 6, 1)
        """
        _refuse_traced("stop()", "let a policy stop (kf.control)")
        if not self._calls.is_over and not self.stopped:
            self._run.pending.stop_reason = f"training.stop: {reason}" if reason else "training.stop"
            barrier.ask(self._run)

    def resume(self, path: str | os.PathLike[str]) -> Path | None:
        """Continues from a checkpoint, or from the newest one in a folder; if none exists, training starts afresh.

        Call this method before the first step and after every ``register``; also after ``batches`` over
        ``kf.data.partitions``, whose position in each file is part of the state. The number of peers may differ from
        the checkpoint's. The batch size continues too, unless the program sets another. With another number of peers,
        folds (policies' memories) restart if a rescale resets them. Each sample of the epoch is used exactly once. The
        option ``kungfu-run --resume`` takes precedence over ``path``.

        Args:
            path: A folder of checkpoints, or one checkpoint.

        Returns:
            The checkpoint's path; ``None`` if training starts from the beginning, and on a joiner.

        Raises:
            UsageError: The checkpoint does not fit, or is damaged; the error names the problem, and the newest intact
                checkpoint. An older checkpoint is never loaded silently, and no state was changed.
        """
        return self._run.checkpoints.resume(Path(path))

    def finish(self) -> None:
        """Ends training on this peer; ``batches`` calls this method at its end, as a custom loop should.

        The peers still in the job average their layers' statistics, and compare their states.
        """
        self._calls.finish()

    def traces(self) -> int:
        """The number of times that TensorFlow has traced the step; it stays 1 when peers join or leave."""
        return self._calls.traces()


def _refuse_traced(call: str, instead: str) -> None:
    if not tf.executing_eagerly():
        raise UsageError(
            f"training.{call} was called inside a function that TensorFlow traces, so it would be called once and "
            f"never again: call it from Python between two steps, or {instead}"
        )
