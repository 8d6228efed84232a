"""The compiled step: the user's function and the barrier after it, traced once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import call_traced
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.layer_memory import LayerMemory
from kungfu.training.graph.learning_rate import LearningRateControl
from kungfu.training.graph.model_average import ModelAverage
from kungfu.training.graph.step_report import StepReport, read_report, write_report
from kungfu.training.graph.tracing.trace import StepTrace
from kungfu.training.graph.variable_io import call_on_host, call_on_host_where, is_variable, read_handles, write_handles

# The outcomes of a step. The barrier never raises: inside the graph an exception would lose its type, and the rest of
# the step would still run.
DONE, BARRIER_HELD, BARRIER_FAILED = 0, 1, 2
UNSYNCHRONISED = 4  # the peers have sent each other nothing, since the run averages models (ACCUMULATED is 3)

# The arguments of one call: the index of the micro-batch, the number of micro-batches, and 1 if the micro-batch is
# empty and the batch contains another peer's sample. These values denote the only micro-batch of a step.
WHOLE = (0, 1, 0)


class BatchRollback:
    """Restores variables on a peer without samples, which runs the step on another peer's sample. The variables
    ``kept`` are equal on all peers and must change here too; a statistic or a metric must not count that sample twice.
    After a failed step, `StepTrace.undo` restores variables."""

    def __init__(self, kept: Iterable[tf.Variable]) -> None:
        self.kept = {id(one.handle) for one in kept}
        self._handles: list[Any] = []
        self._before: list[Any] = []

    @property
    def is_needed(self) -> bool:
        """True if the step uses a variable that must be restored after a call without samples."""
        return bool(self._handles)

    def covers(self, handles: Sequence[Any], *, alike: Collection[int] = ()) -> None:
        """Tracing: selects the handles of variables to restore; omits ``alike``, assigned equal values on all peers."""
        self._handles = [one for one in handles if id(one) not in self.kept and id(one) not in alike]

    def remember(self) -> None:
        """Host: saves the variables' values, before a step without samples."""
        self._before = read_handles(self._handles)

    def restore(self) -> None:
        """Host: restores the saved values, after the step or its failure; does nothing if none are saved."""
        if self._before:  # otherwise the step finished, and has restored the values itself
            write_handles(self._handles, self._before)
            self._before = []

    def remembered(self, samples: Any) -> None:
        """Graph: saves the variables' values (see `remember`) if this peer has no samples."""
        self._on_host(self.remember, samples)

    def restored(self, samples: Any) -> None:
        """Graph: restores the saved values if there are no samples; later ops of the step see the restored values."""
        self._on_host(self.restore, samples)

    def _on_host(self, act: Callable[[], None], samples: Any) -> None:
        if self._handles:  # without handles the step needs no host call
            call_on_host_where(tf.equal(samples, 0), act, self._handles)


@dataclass(frozen=True)
class StepParts:
    """The parts from which a step is compiled, besides the user's function."""

    graph_state: GraphState
    trace: StepTrace  # of the user's function
    rollback: BatchRollback
    handles: Sequence[Any]  # of all variables that the barrier may write
    barrier: Callable[[], int]  # returns the outcome of the step
    rate: LearningRateControl | None = None  # if a policy sets the learning rate
    accumulation: Accumulation | None = None  # if the loader splits shares into micro-batches
    memory: LayerMemory = field(default_factory=LayerMemory)
    models: ModelAverage | None = None  # if the run averages models in place of gradients


def compile_step(
    function: Callable[..., Any], parts: StepParts, example: Sequence[Any], structure: Any
) -> CompiledStep:
    """Traces the step of a user's function; ``UsageError`` if the function averages more or less often than declared,
    or more than once with micro-batches."""
    trace = parts.trace
    if parts.accumulation is not None and trace.declared_averages > 1:
        raise UsageError(
            f"@training.step(averages={trace.declared_averages}) beside training.batches(max_local_batch_size=...): "
            "only the last micro-batch of a share averages, and what the step applies after its first average would "
            "not be known to the next micro-batch; leave max_local_batch_size out, or average once"
        )
    try:
        compiled = CompiledStep(function, parts, example, structure)
    except Exception as error:
        # AutoGraph re-raises kungfu's errors inside the function as another type.
        if trace.refused is None or error is trace.refused:
            raise
        raise trace.refused from error
    trace.refuse_averages()
    return compiled


class CompiledStep:
    """A user's step function followed by the barrier, called with a micro-batch and its index in the step.

    Args:
        function: The user's function. Every first dimension is left open, so that uneven slices do not cause a retrace.
        structure: The nest of positional and named arguments that has these tensors as its leaves.
    """

    def __init__(self, function: Callable[..., Any], parts: StepParts, example: Sequence[Any], structure: Any) -> None:
        self._inner = tf.function(parts.trace.traced(function))
        self._parts, self._posts = parts, parts.graph_state.posts
        self._structure = structure
        self._returned: Any = None
        shapes = [[None, *one.shape[1:]] if one.shape.rank else one.shape for one in example]
        self._signature = [tf.TensorSpec(shape, one.dtype) for shape, one in zip(shapes, example, strict=True)]
        signature = [tf.TensorSpec((len(WHOLE),), tf.int64), *self._signature]
        self._outer = tf.function(self._step, input_signature=signature, autograph=False)
        self._traced = self._outer.get_concrete_function()
        self._captured = self._traced.captured_inputs
        self._accepted: list[Any] = []  # dtypes and shapes of the tensors of the last call

    @property
    def handles(self) -> list[Any]:
        """The handles of every variable that the step uses, including the user's variables."""
        return [one for one in self._traced.captured_inputs if is_variable(one)]

    def traces(self) -> int:
        """The number of traces of the step, or of the user's function in the step if that number is larger."""
        return max(self._outer.experimental_get_tracing_count(), self._inner.experimental_get_tracing_count())

    def __call__(self, micro: tuple[int, int, int], tensors: Sequence[Any]) -> tuple[Any, StepReport]:
        """Runs one micro-batch; returns the user function's result and the step's report. For ``micro`` see `WHOLE`."""
        rollback = self._parts.rollback
        # The sample belongs to another peer: this peer's local variables must not count it.
        is_undone = rollback.is_needed and (micro[2] or not sample_count(tensors))
        if is_undone:
            rollback.remember()
        try:
            report, *flat = self._whole_or_undone(micro, tensors)
        finally:  # also restores after a step that failed midway
            if is_undone:
                rollback.restore()
        return self._packed(flat), read_report(report)

    def _whole_or_undone(self, micro: tuple[int, int, int], tensors: Sequence[Any]) -> list[Any]:
        # In an ordinary step of a run that averages models no message can fail, and a copy would cost memory and time.
        models = self._parts.models
        undo = self._parts.trace.undo if models is None or models.is_synchronising else []
        before = read_handles(undo)
        try:
            return self._run(micro, tensors)
        except BaseException:  # a later message failed, for example: undoes the changes made before it
            write_handles(undo, before)
            raise

    def _run(self, micro: tuple[int, int, int], tensors: Sequence[Any]) -> list[Any]:
        # The program runs op by op, to debug its functions.
        if tf.config.functions_run_eagerly():
            return list(self._outer(_constant(micro), *tensors))
        kinds = [(one.dtype, one.shape) for one in tensors]
        if kinds != self._accepted:
            self.refuse_unlike(tensors)
            self._accepted = kinds
        return call_traced(self._traced, [_constant(micro), *tensors], self._captured)

    def refuse_unlike(self, tensors: Sequence[Any]) -> None:
        """Raises ``UsageError`` if tensors differ in type or shape from those with which the step was traced."""
        if len(tensors) != len(self._signature):
            raise UsageError(
                f"the step was called with a batch of {len(tensors)} tensors, and its first one had "
                f"{len(self._signature)}: every batch has the structure of the first"
            )
        for place, (tensor, spec) in enumerate(zip(tensors, self._signature, strict=True), start=1):
            if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(tensor.shape):
                raise UsageError(
                    f"the step was called with another kind of batch than its first one: tensor {place} of "
                    f"{len(tensors)} is {tensor.dtype.name} of shape {_shown(tensor.shape)}, and was {spec.dtype.name} "
                    f"of shape {_shown(spec.shape)}; the step is traced once, so cast, pad or cut every batch to one "
                    "type and shape (the first dimension is free)"
                )

    def inside(
        self, tensors: Sequence[Any], *, failed: Callable[[], None], offer: Callable[[], None], offer_every: int
    ) -> Any:
        """Runs the step inside a function of the user, such as a loop of steps.

        After a barrier that failed, or ended training, the remaining steps of the loop do nothing and return zeros.

        Args:
            failed: Raises the failure of a barrier, which ends the loop with an error; the graph itself cannot raise.
            offer: Adds a checksum to the message of the coming step, or removes the checksum.
            offer_every: N: ``offer`` is called before every N-th step, and before the step that follows each of these
                steps. 0: ``offer`` is never called.

        Returns:
            The result of the user's function.

        Raises:
            UsageError: The batch differs in type or shape from the one with which the step was traced.
        """
        self.refuse_unlike(tensors)
        nothing = [([one or 0 for one in output.shape], output.dtype) for output in self._traced.outputs[1:]]

        def run() -> list[Any]:
            if offer_every:
                call_on_host_where(_is_offered(self._parts.graph_state, every=offer_every), offer, self._parts.handles)
            self._parts.rollback.remembered(_samples(tensors))
            report, *flat = self._outer(tf.constant(WHOLE, tf.int64), *tensors)
            return [tf.cast(report[0], tf.int64), *flat]

        def skip() -> list[Any]:
            return [tf.constant(DONE, tf.int64), *(tf.zeros(*spec) for spec in nothing)]

        code, *flat = tf.cond(self._posts.halted.read_value(), skip, run)

        def fail() -> Any:
            with tf.control_dependencies([tf.py_function(lambda: failed(), [], [])]):
                return tf.constant(False)

        with tf.control_dependencies([tf.cond(tf.equal(code, BARRIER_FAILED), fail, lambda: tf.constant(True))]):
            return self._packed([tf.identity(output) for output in flat])

    def _packed(self, flat: Sequence[Any]) -> Any:
        values = iter(flat)
        leaves = [next(values) if is_tensor else None for is_tensor in self._returned[1]]
        return tf.nest.pack_sequence_as(self._returned[0], leaves)

    # ---- traced ----------------------------------------------------------------------------------------------------

    def _step(self, micro: Any, *tensors: Any) -> list[Any]:
        """Graph: the whole step, traced once; sets the learning rate, calls the user's function, ends and reports."""
        parts, accumulation = self._parts, self._parts.accumulation
        # If the share is empty, the batch holds another peer's sample, which has no weight in the mean.
        samples = tf.where(micro[2] > 0, 0, _samples(tensors))
        _begin(parts, samples)
        args, kwargs = tf.nest.pack_sequence_as(self._structure, list(tensors))
        with nullcontext() if accumulation is None else accumulation.around_function(micro):
            returned = self._inner(*args, **kwargs)
        # The variables that the function touches are known only after its trace.
        trace, rollback = parts.trace, parts.rollback
        rollback.covers(trace.handles, alike=parts.memory.assigned_alike(trace, equal=rollback.kept))
        rollback.restored(samples)
        if parts.models is not None:
            parts.models.covers(trace.graph)
        # Tensors leave the graph; every other value that the function returns becomes ``None``.
        leaves = tf.nest.flatten(returned)
        self._returned = (returned, [isinstance(leaf, tf.Tensor) for leaf in leaves])
        code = self._ended() if accumulation is None else accumulation.ended(self._ended)
        return [write_report(parts.graph_state, code), *(leaf for leaf in leaves if isinstance(leaf, tf.Tensor))]

    def _ended(self) -> Any:
        """Graph: ends a step that all peers finished; in a run that averages models, does so in synchronising steps."""
        parts = self._parts
        if parts.models is None:
            return self._concluded()
        return _average_or_count(parts.graph_state, parts.models, concluded=self._concluded)

    def _concluded(self) -> Any:
        """Graph: advances the position after a step that all peers finished, and runs a requested barrier."""
        _advance(self._parts.graph_state)
        # All peers received the same number with the message: either all peers run the barrier, or none does.
        asked = self._posts.everywhere.read_value() > 0
        return tf.cond(asked, self._barrier, lambda: tf.constant(DONE, tf.int64))

    def _barrier(self) -> Any:
        """Calls the barrier on the host, after the update and while no other op runs."""
        code = call_on_host(self._parts.barrier, self._parts.handles, tf.int64)
        code.set_shape(())
        return code


def _batched(tensors: Sequence[Any]) -> Any | None:
    """The first tensor that is not a scalar: the length of its first dimension is the number of samples."""
    return next((tensor for tensor in tensors if tensor.shape.rank), None)


def _samples(tensors: Sequence[Any]) -> Any:
    batch = _batched(tensors)
    return tf.constant(1) if batch is None else tf.shape(batch)[0]


def sample_count(tensors: Sequence[Any]) -> int:
    """The number of samples in tensors outside a graph; 1 if no tensor has a first dimension."""
    batch = _batched(tensors)
    return 1 if batch is None else int(batch.shape[0])


@lru_cache(maxsize=64)
def _constant(micro: tuple[int, int, int]) -> Any:
    """The micro-batch as a tensor; cached, since most calls pass the same one, and a new tensor doubles their cost."""
    return tf.constant(micro, tf.int64)


def _shown(shape: Any) -> str:
    return "(" + ", ".join("any" if dimension is None else str(dimension) for dimension in shape) + ")"


def _begin(parts: StepParts, samples: Any) -> None:
    """Graph: begins a step with this peer's sample count, clears published values, and updates the learning rate."""
    metrics = parts.graph_state.metrics
    metrics.samples.assign(tf.cast(samples, tf.float32))
    metrics.published.clear()
    if parts.rate is not None:
        parts.rate.advance(parts.graph_state.progress)


def _is_offered(graph_state: GraphState, *, every: int) -> tf.Tensor:
    """Graph: True if ``offer`` (see `inside`) is due: before every N-th step, and before the step that follows it."""
    return tf.less(graph_state.progress.step.read_value() % every, 2)


def _average_or_count(graph_state: GraphState, models: ModelAverage, *, concluded: Callable[[], Any]) -> Any:
    """Graph: ends a step of a run that averages models; returns its outcome."""
    window = models.window

    # The last step of the window. The position advances behind the message: it may fail, and no variable orders them.
    def average() -> Any:
        with tf.control_dependencies(models.average()):
            return concluded()

    # An ordinary step: nothing is sent, and the samples of all peers follow from the position in the data.
    def count() -> Any:
        trained = graph_state.samples_of_step()
        graph_state.metrics.total_samples.assign(tf.cast(trained, tf.float32))
        window.counted.assign_add(trained)
        _advance(graph_state)
        return tf.constant(UNSYNCHRONISED, tf.int64)

    return tf.cond(window.is_last_step(), average, count)


def _advance(graph_state: GraphState) -> None:
    """Graph: counts the step, and advances the job's position in the data by the samples of all peers."""
    progress = graph_state.progress
    progress.step.assign_add(1)
    graph_state.view.steps.assign_add(1)
    samples = progress.samples.read_value()
    trained = tf.cast(tf.round(graph_state.metrics.total_samples.read_value()), tf.int64)
    progress.trained.assign_add(trained)
    offset = progress.offset + trained
    # The same rule as in kungfu.runtime.core.sample_slices.advanced.
    least = tf.where(progress.drops > 0, tf.minimum(graph_state.view.global_batch_size, samples), tf.ones_like(samples))
    # The epoch ends where no further step fits; without a loader there are no epochs.
    over = tf.logical_and(samples > 0, offset + least > samples)
    progress.epoch.assign_add(tf.cast(over, tf.int64))
    progress.offset.assign(tf.where(over, tf.zeros_like(offset), offset))


def as_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of a step's arguments as tensors; raises ``UsageError`` for a leaf that cannot be converted."""
    tensors = []
    for leaf in tf.nest.flatten((args, kwargs)):
        if isinstance(leaf, tf.Tensor):  # the usual case: a conversion would take as long as the rest of this function
            tensors.append(leaf)
            continue
        if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
            raise UsageError(
                f"a function marked @training.step takes tensors and arrays, but was given a {type(leaf).__name__}, "
                "whose samples are of different lengths or not all there: make it dense with ragged.to_tensor() or "
                "tf.sparse.to_dense() before the step"
            )
        try:  # an array, a number, a variable
            tensors.append(tf.convert_to_tensor(leaf))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"a function marked @training.step takes tensors and arrays, but was given {type(leaf).__name__}: "
                "close over what does not change from step to step"
            ) from error
    return tensors
