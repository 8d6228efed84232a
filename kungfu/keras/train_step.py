"""The training step of ``fit``: Keras' ``train_step``, with the average over the peers before the update.

The step computes loss, metrics and gradients, compiled by XLA if the model requests it; exchanges one message; and
updates the weights. Keras updates metrics after the weights, but from predictions made before that. Here metrics are
updated before the message, so that the message carries the metrics' states.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import added_to_unmasked, all_layers, is_in_xla_context, loss_tracker, reductions_by
from kungfu.keras.metrics import JobLogs
from kungfu.training.graph.average import SummedTotals, average
from kungfu.training.graph.combined_metrics import CombinedMetrics, PeerShare, peer_share
from kungfu.training.graph.gradient_message import Averaging
from kungfu.training.graph.totals import add_up
from kungfu.training.run import Run

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
Step = Callable[[Any], dict[str, Any]]
# Called with a batch and the metrics' initial states; returns gradients, loss, and the states after the batch.
Forward = Callable[[Any, Sequence[Any]], tuple[list[Any], Any, list[Any]]]

_UNCOMPILED = (
    "kungfu: the loss of this model is not divided by the number of samples, so the peers add up what it is divided by "
    "before the backward pass: forward and backward pass run without XLA (jit_compile)"
)


def job_step(
    model: Any, run: Run, metrics: CombinedMetrics, *, stop_requested: tf.Variable
) -> tuple[Callable[[Any], Any], JobLogs]:
    """Returns the training step of a peer in a job, as a function, and the logs of the epoch.

    The function takes a batch, as ``fit`` reads it. It returns a number above 0 if rank 0's callbacks had requested the
    end of training before this step. ``stop_requested`` is 1.0 if this peer's callbacks request the end.
    """
    # A run that averages models trains on the losses of slices.
    around_loss = whole_batch_losses(run).scaled if run.models is None else nullcontext
    if run.models is not None:
        run.models.equal = metrics.totals

    def gradients_and_metrics(data: Any, start: Sequence[Any]) -> tuple[list[Any], Any, list[Any]]:
        with metrics.watched(start) as watched:
            gradients, loss = _gradients(model, data, around_loss=around_loss)
        return gradients, loss, watched.after()

    forward = _compiled(model, gradients_and_metrics)

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> Any:
        peer = peer_share(run.graph_state)
        start = metrics.start(anew=tf.equal(run.graph_state.progress.offset.read_value(), 0))
        gradients, loss, after = forward(data, start)
        stops = tf.where(tf.equal(peer.rank, 0), stop_requested.read_value(), 0.0)
        means, (*sums, stops) = average_and_sum(run, gradients, [*metrics.outgoing(after, peer), stops], loss=loss)
        model.optimizer.apply_gradients(zip(means, model.trainable_weights, strict=True))
        metrics.conclude(sums)
        return stops

    def numbers(totals: Sequence[Any]) -> dict[str, Any]:
        metrics.show(totals)
        return dict(model.get_metrics_result())

    return step, JobLogs(metrics.totals, numbers)


def average_and_sum(run: Run, gradients: Any, totals: Sequence[Any], *, loss: Any) -> tuple[Any, Sequence[Any]]:
    """Graph: returns the result of ``Training.average`` and the sums of ``totals``; policies do not see the sums."""
    sums, layers = list[Any](), run.memory.sums

    def last(averaging: Averaging) -> Any:
        summed = [SummedTotals(totals, sums.extend), SummedTotals(layers.outgoing(), layers.conclude)]
        return average(averaging, gradients, loss=loss, summed=summed)

    return run.average(gradients, last), sums


def step_alone(model: Any, average: Callable[..., Any]) -> Step:
    """The step of a program that trains alone: Keras' step; ``Training.average`` passes its gradients to policies."""
    forward = _compiled(model, lambda data, _: (*_gradients(model, data), []))

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> dict[str, Any]:
        gradients, loss, _ = forward(data, [])
        means = average(gradients, loss=loss)
        model.optimizer.apply_gradients(zip(means, model.trainable_weights, strict=True))
        return dict(model.get_metrics_result())

    return step


def _gradients(
    model: Any, data: Any, *, around_loss: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> tuple[list[Any], Any]:
    """Graph: updates the metrics; returns one gradient for each trainable weight, and the loss."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    weights = model.trainable_weights
    with tf.GradientTape() as tape:
        predicted = model(x, training=True) if _accepts_training(model.call) else model(x)
        with around_loss():
            loss = _loss(model, x, y, predicted, sample_weight)
        scaled = model.optimizer.scale_loss(loss)  # for half precision
    gradients = tape.gradient(scaled, weights)
    samples = tf.shape(next(one for one in tf.nest.flatten(x) if one is not None))[0]
    if (tracker := loss_tracker(model)) is not None:
        tracker.update_state(loss, sample_weight=samples)
    model.compute_metrics(x, y, predicted, sample_weight=sample_weight)
    return gradients, loss


def _loss(model: Any, x: Any, y: Any, predicted: Any, sample_weight: Any) -> Any:
    """The model's loss for a batch; a ``compute_loss`` written for Keras before 3.3 has no argument ``training``."""
    more = {"training": True} if _accepts_training(model.compute_loss) else {}
    return model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, **more)


def _accepts_training(function: Callable[..., Any]) -> bool:
    return "training" in inspect.signature(function).parameters


def _compiled(model: Any, forward: Forward) -> Forward:
    """Returns ``forward`` as a separate function compiled by XLA if the model has ``jit_compile``, else unchanged."""
    if not model.jit_compile:
        return forward

    there: list[bool] = []  # for each gradient, True if it is not None; a compiled function returns no None

    @tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
    def within(data: Any, start: Sequence[Any]) -> tuple[list[Any], Any, list[Any]]:
        gradients, loss, after = forward(data, start)
        there[:] = [one is not None for one in gradients]
        return [tf.convert_to_tensor(one) for one in gradients if one is not None], loss, after

    def compiled(data: Any, start: Sequence[Any]) -> tuple[list[Any], Any, list[Any]]:
        try:
            given, loss, after = within(data, start)
        except NeedsMessageError:  # printed once, as the step is traced once
            print(_UNCOMPILED, file=sys.stderr)
            return forward(data, start)
        found = iter(given)
        return [next(found) if is_there else None for is_there in there], loss, after

    return compiled


# ---- refusals --------------------------------------------------------------------------------------------------------


def refuse_step(model: Any) -> None:
    """Raises ``UsageError`` for a training step that runs eagerly, or under a distribution strategy."""
    if model.run_eagerly:
        raise UsageError(
            "model.compile(run_eagerly=True): policies and the average over the peers are a part of the traced step; "
            "compile without run_eagerly, or debug the script without policies and without kungfu-run"
        )
    if tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy():
        raise UsageError(
            "the model was made under a tf.distribute strategy: the peers of a job take its place; make the model "
            "outside of strategy.scope()"
        )


def refuse_job_step(model: Any) -> None:
    """Raises ``UsageError`` for a model whose training step would give other results in a job than with Keras alone."""
    refuse_step(model)
    _refuse_fixed_batch(model)
    for loss in tf.nest.flatten(model.loss):
        if not isinstance(loss, str) and getattr(loss, "reduction", "mean") in (None, "none"):
            raise UsageError(
                f"the loss {loss.name!r} has the reduction {loss.reduction!r} under kungfu-run: it does not say what "
                "the sum over the batch is divided by; give reduction='sum_over_batch_size', or 'sum'"
            )


def _refuse_fixed_batch(model: Any) -> None:
    """Refuses models with a fixed batch size: the sizes of slices differ between peers, and change with rescales."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise UsageError(
                f"the layer {layer.name!r} is stateful=True under kungfu-run: it goes on with what it knew of the "
                "sample at the same place of the batch before, and the peers' slices of a batch change as they come "
                "and go; make it without stateful, and give it longer sequences, or run the script without kungfu-run"
            )
    for given in tf.nest.flatten(getattr(model, "inputs", None) or []):
        if given.shape[0] is not None:
            raise UsageError(
                f"the model takes batches of {given.shape[0]} samples and no others: its input {given.name!r} has the "
                f"shape {tuple(given.shape)}; under kungfu-run each peer has a slice of a batch, so leave its size "
                "open: keras.Input(shape=...) without batch_size and batch_shape"
            )


# ---- losses ----------------------------------------------------------------------------------------------------------


class NeedsMessageError(Exception):
    """Raised if a loss must be scaled inside a function compiled by XLA, which cannot send messages."""


class WholeBatchLosses:
    """Scales a peer's losses so that their mean over the peers, weighted by samples, is the loss of the whole batch.

    A loss is a sum over the batch, divided by its *denominator*: the number of samples, the sum of their weights, the
    number of unmasked positions, or 1. Let rank ``r`` have the numerator ``N_r``, the denominator ``D_r`` and ``s_r``
    of the ``T`` samples. The loss of the whole batch is ``sum(N_r) / sum(D_r)``, while gradients are weighted by
    samples. So a peer scales its loss ``N_r / D_r`` by ``(D_r / sum(D_r)) * (T / s_r)``. The mean over the peers,
    weighted by samples, is then the loss of the whole batch, term by term, and likewise for the gradients. Losses that
    Keras does not reduce (weights' regularizers, ``add_loss``) are not scaled, and count once, as a mean over samples.

    If the denominator is the number of samples, the scale is 1, and no message is sent.

    Args:
        sums: Returns the sums of tensors over the peers; sends a message with a given tag.

    Cost:
        For each denominator other than the number of samples, a message of two numbers before the gradients' message.
    """

    def __init__(self, peer: Callable[[], PeerShare], sums: Callable[..., Sequence[Any]]) -> None:
        self._peer, self._sums = peer, sums
        self._graph: Any = None
        self._known: list[tuple[Any, ...]] = []  # the inputs of each factor, and the factor

    @contextmanager
    def scaled(self) -> Iterator[None]:
        """Graph: scales the losses computed inside the ``with`` block."""
        self._graph, self._known = tf.compat.v1.get_default_graph(), []
        with reductions_by(self._reduce):
            yield
        self._graph, self._known = None, []

    def _reduce(
        self,
        own: Callable[..., Any],
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        """Graph: a loss as Keras reduces it, scaled by this peer's factor (see the class)."""
        loss = own(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        graph = tf.compat.v1.get_default_graph()
        # A branch or a loop may not run on every peer, so it cannot have a message: its loss is weighted by samples.
        # A scalar was already reduced by the program, and Keras does not reduce it either.
        if graph is not self._graph or reduction not in (*_MEANS, "sum") or not len(values.shape):
            return loss
        weights = (sample_weight if reduction == "mean_with_sample_weight" else None, mask)
        if reduction in _MEANS and weights[0] is None and mask is None:
            return loss
        # A "sum" is scaled by the samples alone, other reductions also by their part of the denominators.
        added = 0.0 if mask is None or reduction not in ("sum_over_batch_size", "mean") else added_to_unmasked()
        follows = (None, None, False) if reduction == "sum" else (*weights, added > 0)
        factor = next((one[-1] for one in self._known if all(a is b for a, b in zip(one, follows, strict=False))), None)
        if factor is None:
            if is_in_xla_context(graph):
                raise NeedsMessageError
            counts = None
            if reduction != "sum":
                ones = keras.ops.ones_like(keras.ops.convert_to_tensor(values, dtype=dtype))
                counts = own(ones, sample_weight=weights[0], mask=mask, reduction="sum", dtype=dtype)
            factor = self._factor(counts, added)
            self._known.append((*follows, factor))
        return loss * tf.cast(factor, loss.dtype)

    def _factor(self, denominator: Any | None, added: float) -> Any:
        """Graph: the factor that scales a loss, float64; 0 if this peer has no samples, or all denominators are 0."""
        # Keras adds ``added`` to the denominator of a whole batch once; so the sum gets it once, not once per peer.
        samples = tf.cast(self._peer().samples, tf.float64)
        own = [samples]
        if denominator is not None:  # without samples, the slice is another peer's sample
            own.append(tf.where(samples > 0, tf.cast(denominator, tf.float64), 0.0))
        (come,) = self._sums([tf.stack(own)], tag="denominators")
        part = 1.0 if denominator is None else tf.math.divide_no_nan(own[1] + added, come[1] + added)
        # The counts do not depend on weights, though they are computed from values that do.
        return tf.stop_gradient(part * tf.math.divide_no_nan(come[0], samples))


def whole_batch_losses(run: Run) -> WholeBatchLosses:
    """The scaling of losses for the steps of a run."""

    def sums(values: Sequence[Any], *, tag: str) -> list[Any]:
        with run.trace.ours():
            return add_up(run.attachment, values, order=run.graph_state.order, tag=tag)

    return WholeBatchLosses(partial(peer_share, run.graph_state), sums)
