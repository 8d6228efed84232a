"""The training step of ``fit``: Keras' own ``train_step``, with the average over the peers between its halves.

Forward pass, loss, metrics and gradients come first, compiled by XLA where the model says so; then the one message;
then the update. Keras updates its metrics after the optimizer has run, from predictions that were made before: here
they are updated first, so that what they have seen rides on the message.
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

from kungfu.framework_internals import added_to_unmasked, is_in_xla_context, loss_tracker, reductions_by
from kungfu.training.graph.combined_metrics import CombinedMetrics, PeerShare
from kungfu.training.loop.averages import average_and_sum, sum_in_step
from kungfu.training.loop.loop_metrics import peer_share
from kungfu.training.run import Run

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
Step = Callable[[Any], dict[str, Any]]
# Of a batch, and of the states that metrics start with: gradients, loss, and the states after it.
Forward = Callable[[Any, Sequence[Any]], tuple[list[Any], Any, list[Any]]]

_UNCOMPILED = (
    "kungfu: the loss of this model is not divided by the number of samples, so the peers add up what it is divided by "
    "before the backward pass: forward and backward pass run without XLA (jit_compile)"
)


def job_step(model: Any, run: Run, metrics: CombinedMetrics, *, stop_requested: tf.Variable) -> Callable[[Any], Any]:
    """The step of a peer of a job.

    Args:
        model: Compiled and built.
        run: Of the step.
        metrics: Combines over the peers what the model's metrics see.
        stop_requested: 1.0 if this peer's callbacks want training to stop; rank 0's counts.

    Returns:
        A function of a batch in the structure of ``fit``. It gives a number above 0 if rank 0 asked to stop before
        this step.
    """
    losses = whole_batch_losses(run)

    def gradients_and_metrics(data: Any, start: Sequence[Any]) -> tuple[list[Any], Any, list[Any]]:
        with metrics.watched(start) as watched:
            gradients, loss = _gradients(model, data, around_loss=losses.scaled)
        return gradients, loss, watched.after()

    forward = _compiled(model, gradients_and_metrics)

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> Any:
        peer = peer_share(run.graph_state)
        start = metrics.start(anew=tf.equal(run.graph_state.progress.offset.read_value(), 0))
        gradients, loss, after = forward(data, start)
        stops = tf.where(tf.equal(peer.rank, 0), stop_requested.read_value(), 0.0)
        means, (*sums, stops) = average_and_sum(run, gradients, [*metrics.outgoing(after, peer), stops], loss=loss)
        _apply(model, means)
        metrics.conclude(sums)
        return stops

    return step


def step_alone(model: Any, average: Callable[..., Any]) -> Step:
    """The step of a program that runs alone under policies: what Keras would do, seen by them.

    Args:
        model: Compiled and built.
        average: ``Training.average``.
    """
    forward = _compiled(model, lambda data, _: (*_gradients(model, data), []))

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> dict[str, Any]:
        gradients, loss, _ = forward(data, [])
        _apply(model, average(gradients, loss=loss))
        return dict(model.get_metrics_result())

    return step


def _gradients(
    model: Any, data: Any, *, around_loss: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> tuple[list[Any], Any]:
    """Graph: one gradient for each trainable weight, and the loss; the metrics have seen the batch."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    weights = model.trainable_weights
    with tf.GradientTape() as tape:
        predicted = model(x, training=True) if _accepts_training(model.call) else model(x)
        with around_loss():
            loss = _loss(model, x, y, predicted, sample_weight)
        scaled = model.optimizer.scale_loss(loss)  # in half precision
    gradients = tape.gradient(scaled, weights)
    samples = tf.shape(next(one for one in tf.nest.flatten(x) if one is not None))[0]
    if (tracker := loss_tracker(model)) is not None:
        tracker.update_state(loss, sample_weight=samples)
    model.compute_metrics(x, y, predicted, sample_weight=sample_weight)
    return gradients, loss


def _apply(model: Any, means: Any) -> None:
    model.optimizer.apply_gradients(zip(means, model.trainable_weights, strict=True))


def _loss(model: Any, x: Any, y: Any, predicted: Any, sample_weight: Any) -> Any:
    """A model of the user's may have a ``compute_loss`` from before Keras 3.3, without ``training``."""
    more = {"training": True} if _accepts_training(model.compute_loss) else {}
    return model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, **more)


def _accepts_training(function: Callable[..., Any]) -> bool:
    return "training" in inspect.signature(function).parameters


def _compiled(model: Any, forward: Forward) -> Forward:
    """Forward and backward pass in a function of their own, for XLA, where the model was compiled for it."""
    if not model.jit_compile:
        return forward

    there: list[bool] = []  # which of the gradients are, as the trace finds out; a compiled function gives no ``None``

    @tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
    def within(data: Any, start: Sequence[Any]) -> tuple[list[Any], Any, list[Any]]:
        gradients, loss, after = forward(data, start)
        there[:] = [one is not None for one in gradients]
        return [tf.convert_to_tensor(one) for one in gradients if one is not None], loss, after

    def compiled(data: Any, start: Sequence[Any]) -> tuple[list[Any], Any, list[Any]]:
        try:
            given, loss, after = within(data, start)
        except NeedsMessageError:  # said once, as the step is traced once
            print(_UNCOMPILED, file=sys.stderr)
            return forward(data, start)
        found = iter(given)
        return [next(found) if is_there else None for is_there in there], loss, after

    return compiled


# ---- losses ----------------------------------------------------------------------------------------------------------


class NeedsMessageError(Exception):
    """A loss is to be scaled inside a function that XLA compiles, where no message can be sent."""


class WholeBatchLosses:
    """Scales the losses of one peer so that their mean over the peers, weighted by samples, is that of the whole batch.

    A loss is a sum over the batch, divided by its *denominator*: the samples, the sum of their weights, the positions
    that are not masked, or 1. With numerators ``N_r`` and denominators ``D_r`` of rank ``r``, which has ``s_r`` of
    ``T`` samples, the loss of the whole batch is ``sum(N_r) / sum(D_r)``, while gradients are weighted by samples. So a
    peer scales its loss ``N_r / D_r`` by ``(D_r / sum(D_r)) * (T / s_r)``: the mean over the peers, weighted by
    samples, of the loss and of its gradients, is then that of the whole batch, term by term. What is no reduced loss of
    Keras' (weights' regularizers, ``add_loss``) stays as it is, and counts as a mean over samples: once.

    Where the denominator is the number of samples the scale is 1, and nothing is done.

    Args:
        peer: Gives this peer's part in the step.
        sums: Gives the sums of tensors over the peers, by a message with this tag.

    Cost:
        A message of two numbers per denominator that is not the number of samples, before that of the gradients.
    """

    def __init__(self, peer: Callable[[], PeerShare], sums: Callable[..., Sequence[Any]]) -> None:
        self._peer, self._sums = peer, sums
        self._graph: Any = None
        self._known: list[tuple[Any, ...]] = []  # what a factor follows from, and the factor

    @contextmanager
    def scaled(self) -> Iterator[None]:
        """Graph: within it losses are those of the whole batch."""
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
        """Graph: what Keras' own reduction gives, times the factor of this peer."""
        loss = own(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        graph = tf.compat.v1.get_default_graph()
        # A branch or a loop may not run on every peer, so no message can stand in it: such a loss is by samples.
        # Nor does Keras make one number of a single one, which is what the program has made of them.
        if graph is not self._graph or reduction not in (*_MEANS, "sum") or not len(values.shape):
            return loss
        weights = (sample_weight if reduction == "mean_with_sample_weight" else None, mask)
        if reduction in _MEANS and weights[0] is None and mask is None:
            return loss
        # Loss scales with the sum of samples where it is a sum, else with its part of the denominators.
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
        """Graph: float64; 0 if this peer has no samples, or no peer has anything to divide by."""
        # Keras adds ``added`` to the denominator, of a slice as of a whole batch: once, not once per peer.
        samples = tf.cast(self._peer().samples, tf.float64)
        own = [samples]
        if denominator is not None:  # without samples the slice is another peer's sample
            own.append(tf.where(samples > 0, tf.cast(denominator, tf.float64), 0.0))
        (come,) = self._sums([tf.stack(own)], tag="denominators")
        part = 1.0 if denominator is None else tf.math.divide_no_nan(own[1] + added, come[1] + added)
        # What a slice has does not depend on weights, though it is computed from values that do.
        return tf.stop_gradient(part * tf.math.divide_no_nan(come[0], samples))


def whole_batch_losses(run: Run) -> WholeBatchLosses:
    """The losses of the steps of a run."""
    return WholeBatchLosses(partial(peer_share, run.graph_state), partial(sum_in_step, run))
