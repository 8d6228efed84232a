"""Custom training steps in ``fit``: models with their own ``train_step`` or ``compute_metrics``.

A custom step is traced once before training. The trace creates the step's variables (weights, slots of optimizers,
states of metrics) and shows how often the step applies gradients. In training each application first averages over the
peers, see `kungfu.keras.applications`. A separate message at the end of the step combines the metrics' states, which
are known only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import build_symbolically, replaced_method
from kungfu.keras.applications import Applications, optimizers_of
from kungfu.keras.metrics import JobLogs, metrics_of
from kungfu.keras.train_step import Step, whole_batch_losses
from kungfu.training.graph.average import average_to_conclude
from kungfu.training.graph.combined_metrics import CombinedMetrics, PeerShare, peer_share
from kungfu.training.graph.gradient_message import Averaging
from kungfu.training.graph.totals import add_up
from kungfu.training.run import Run


@dataclass(frozen=True)
class CustomStep:
    """The properties of a custom step that its trace has shown.

    Args:
        optimizers: The optimizer of each application of gradients, in program order.
        numbers: Shape and dtype, by name, of the returned numbers that are not results of metrics.
        knows_loss: True if the step itself has a tape, so that the loss of its gradients is known.
    """

    optimizers: Sequence[Any]
    numbers: Mapping[str, tf.TensorSpec]
    knows_loss: bool

    def note(self, model: Any) -> str:
        """A message of one line that tells the user how the custom step runs in a job."""
        names, times = ", ".join(one.name for one in self.optimizers), len(self.optimizers)
        return (
            f"kungfu: {type(model).__name__} has a training step of its own, without XLA; gradients are "
            f"averaged where it applies them, {'once' if times == 1 else f'{times} times'} per step ({names})"
        )


def explored(model: Any, batch: Any) -> CustomStep | None:
    """Builds a model for a batch of ``keras.KerasTensor``, and traces a custom step of the model without running it.

    Returns:
        The custom step; ``None`` if the model overrides neither ``train_step`` nor ``compute_metrics`` of Keras.

    Raises:
        UsageError: The step applies no gradients, applies them under a condition, assigns weights without an
            optimizer, or returns no dictionary of numbers.
    """
    own = [getattr(getattr(model, name), "__func__", None) for name in ("train_step", "compute_metrics")]
    if own == [keras.Model.train_step, keras.Model.compute_metrics]:
        build_symbolically(model, batch)
        return None
    found: list[CustomStep] = []

    def trace(data: Any) -> None:
        def alone(_: Any, gradients: Sequence[Any], __: Any) -> list[Any]:
            return [None if one is None else tf.identity(tf.convert_to_tensor(one)) for one in gradients]

        applications = Applications(model, alone)
        results = _MetricResults(model)
        with applications.averaged(), results.noted():
            returned = model.train_step(data)
        if not applications.optimizers:
            names = ", ".join(repr(one.name) for one in optimizers_of(model))
            raise UsageError(
                f"{type(model).__name__}.train_step() applies no gradients by an optimizer that compile() was given or "
                f"that is an attribute of the model ({names or 'there is none'}): call apply_gradients() of one of "
                "these"
            )
        numbers = {
            name: tf.TensorSpec(one.shape, one.dtype)
            for name, one in _numbers(model, returned, results).items()
            if isinstance(one, tf.Tensor)
        }
        # TensorFlow traces a second time if the first trace has created variables: the last trace counts.
        found[:] = [CustomStep(tuple(applications.optimizers), numbers, applications.knows_loss)]

    spec = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), batch)
    tf.function(trace, autograph=False).get_concrete_function(spec)
    return found[0]


# ---- returned numbers ------------------------------------------------------------------------------------------------


class _MetricResults:
    """The results of a model's metrics, recorded while a step is traced."""

    def __init__(self, model: Any) -> None:
        self._metrics = metrics_of(model)
        self._results: list[tuple[Any, Any]] = []  # (result, metric)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Records the results that the user's step, inside the ``with`` block, requests from metrics."""
        with ExitStack() as within:
            for one in self._metrics:
                within.enter_context(replaced_method(one, "result", self._noting(one, one.result)))
            yield

    def metric_of(self, value: Any) -> Any | None:
        """The metric that returned this result; ``None`` for any other value."""
        return next((metric for result, metric in self._results if result is value), None)

    def _noting(self, metric: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
        def result() -> Any:
            value = plain()
            self._results.append((value, metric))
            return value

        return result


class CustomMetrics:
    """The metrics of the whole job, and the other numbers that a custom step returns.

    Metrics' states are combined over the peers. Of the other numbers, a float becomes the mean over the samples, and an
    integer is taken from rank 0.
    """

    def __init__(self, model: Any, found: CustomStep, job: CombinedMetrics) -> None:
        self._model, self._job = model, job
        self._last = {
            name: tf.Variable(tf.zeros(one.shape, one.dtype), trainable=False, name=f"kungfu/fit_{name}")
            for name, one in found.numbers.items()
        }
        self._results = _MetricResults(model)
        self._returned: dict[str, Any] = {}  # metrics and numbers of the last trace, by name

    @property
    def totals(self) -> list[tf.Variable]:
        """The variables with the metrics' states and the newest numbers of the whole job; sent to joining peers."""
        return [*self._job.totals, *self._last.values()]

    # ---- traced ----------------------------------------------------------------------------------------------------

    @contextmanager
    def noted(self, *, anew: Any) -> Iterator[None]:
        """Graph: a block around the user's step; first sets metrics to the job's states, or resets them if ``anew``."""
        self._job.assign(self._job.start(anew))
        self._results = _MetricResults(self._model)
        with self._results.noted():
            yield

    def seen(self, returned: Any, peer: PeerShare) -> list[Any]:
        """Graph: this peer's values to be summed over the peers: its samples, the returned numbers, metrics' states."""
        self._returned = _numbers(self._model, returned, self._results)
        numbers = [_share(self._returned[name], samples=peer.samples, rank=peer.rank) for name in self._last]
        # A peer without samples ran the step on another peer's sample, whose results do not count.
        states = self._job.outgoing(self._job.read(), peer)
        return [peer.samples, *numbers, *(tf.where(peer.samples > 0, one, tf.zeros_like(one)) for one in states)]

    def add(self, sums: Sequence[Any]) -> None:
        """Graph: updates `totals` from the sums over the peers of the values that `seen` returns."""
        samples, *rest = sums
        for variable, number in zip(self._last.values(), rest, strict=False):
            is_mean = number.dtype.is_floating
            variable.assign(tf.math.divide_no_nan(number, tf.cast(samples, number.dtype)) if is_mean else number)
        self._job.conclude(rest[len(self._last) :])

    # ---- between steps ---------------------------------------------------------------------------------------------

    def numbers(self, totals: Sequence[Any]) -> dict[str, Any]:
        """The results of the step over all peers, by name, computed from the values of `totals`."""
        count = len(self._job.totals)
        self._job.show(totals[:count])
        last = dict(zip(self._last, totals[count:], strict=True))
        return {name: last[name] if name in last else one.result() for name, one in self._returned.items()}


def _share(number: Any, *, samples: Any, rank: Any) -> Any:
    """A peer's summand for a number: a float times the peer's samples; an integer on rank 0, and 0 on other ranks."""
    if not number.dtype.is_floating:
        return tf.where(tf.equal(rank, 0), number, tf.zeros_like(number))
    return tf.where(samples > 0, number * tf.cast(samples, number.dtype), tf.zeros_like(number))


def _numbers(model: Any, returned: Any, results: _MetricResults) -> dict[str, Any]:
    """The values that a step returns, by name, as tensors; the result of a metric is replaced by the metric itself."""
    if not isinstance(returned, Mapping):
        raise UsageError(
            f"{type(model).__name__}.train_step() returns {type(returned).__name__}: Keras takes a dictionary of "
            "numbers by name, as in {'loss': self.loss_tracker.result()}"
        )
    return {name: _number(model, name, one, results) for name, one in returned.items()}


def _number(model: Any, name: str, value: Any, results: _MetricResults) -> Any:
    if (metric := results.metric_of(value)) is not None:
        return metric
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise UsageError(_not_a_number(model, name, type(value).__name__)) from error
    if not tensor.shape.is_fully_defined() or tensor.dtype in (tf.string, tf.bool):
        raise UsageError(_not_a_number(model, name, f"a {tensor.dtype.name} of shape {tensor.shape}"))
    return tensor


def _not_a_number(model: Any, name: str, what: str) -> str:
    return (
        f"{type(model).__name__}.train_step() returns {what} as {name!r}: the peers' numbers become one, so it takes a "
        "metric's result, or a tensor of numbers whose shape does not depend on the batch, as in tf.reduce_mean(x)"
    )


class SeveralAverages:
    """The averages of gradients in one trace of a step; the step counts as done after `conclude`, not before."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._conclude: Callable[[], Any] | None = None  # concludes the last average

    def average(self, optimizer: Any, gradients: Any, loss: Any) -> Any:
        """Graph: averages ``gradients`` as ``Training.average`` does; called for each of the step's optimizers.

        Policies see the loss, gradients and learning rate of the step's last average; their rules run in `conclude`.
        """
        trace = self._run.trace

        def last(averaging: Averaging) -> Any:
            trace.undo_all()
            means, self._conclude = average_to_conclude(averaging, gradients, loss=loss, waited=trace.waited)
            return means

        return self._run.average(gradients, last, optimizer=optimizer)

    def conclude(self, values: Sequence[Any]) -> list[Any]:
        """Graph: completes a step; returns the sums of ``values`` over the peers.

        Cost: one message, which also carries the increments of layers' variables; none if there is nothing to sum."""
        trace = self._run.trace
        with trace.ours():
            sums = _sum_with_layers(self._run, values)
            if self._conclude is not None:  # otherwise the step has not averaged, which its trace refuses
                with tf.control_dependencies(sums):
                    self._conclude()
        trace.note_end()
        return sums[: len(values)]


def _sum_with_layers(run: Run, values: Sequence[Any]) -> list[Any]:
    """Graph: the peers' sums of ``values`` and of layers' increments; adds the latter sums to the layers' variables."""
    samples, layers = run.graph_state.metrics.samples.read_value(), run.memory.sums
    # A peer without samples ran on another peer's sample.
    given = [*values, *(tf.where(samples > 0, one, tf.zeros_like(one)) for one in layers.outgoing())]
    sums = add_up(run.attachment, given, order=run.graph_state.order, tag="metrics") if given else []
    layers.conclude(sums[len(values) :])
    return sums


# ---- steps -----------------------------------------------------------------------------------------------------------


def custom_job_step(
    model: Any, run: Run, job: CombinedMetrics, found: CustomStep, *, stop_requested: tf.Variable
) -> tuple[Callable[[Any], Any], JobLogs]:
    """The custom step on a peer of a job, and the logs of the epoch; see `job_step`."""
    _refuse_unknown_loss(model, found, run)
    metrics, losses = CustomMetrics(model, found, job), whole_batch_losses(run)

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> Any:
        peer, averages = peer_share(run.graph_state), SeveralAverages(run)
        anew = tf.equal(run.graph_state.progress.offset.read_value(), 0)
        stops = tf.where(tf.equal(peer.rank, 0), stop_requested.read_value(), 0.0)
        with Applications(model, averages.average).averaged(), metrics.noted(anew=anew), losses.scaled():
            returned = model.train_step(data)
        *sums, stops = averages.conclude([*metrics.seen(returned, peer), stops])
        metrics.add(sums)
        return stops

    return step, JobLogs(metrics.totals, metrics.numbers)


def custom_step_alone(model: Any, run: Run, found: CustomStep) -> Step:
    """The custom step for a program without a job; policies see the gradients and the loss that the step averages."""
    _refuse_unknown_loss(model, found, run)

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> dict[str, Any]:
        averages = SeveralAverages(run)
        with Applications(model, averages.average).averaged():
            returned = model.train_step(data)
        averages.conclude([])
        return {name: tf.nest.map_structure(tf.convert_to_tensor, one) for name, one in returned.items()}

    return step


def _refuse_unknown_loss(model: Any, found: CustomStep, run: Run) -> None:
    """Raises ``UsageError`` if a policy reads the loss, but the step has no tape from which the loss is known."""
    if found.knows_loss or {"loss", "mean_loss"}.isdisjoint(run.plan.source_kinds):
        return
    raise UsageError(
        f"a policy reads the loss, and {type(model).__name__}.train_step() takes no gradient by a tf.GradientTape of "
        "its own, of which the loss could be known: call tape.gradient() in train_step itself"
    )
