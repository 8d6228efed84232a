"""The training step of ``fit``: Keras' own ``train_step``, with the average over the peers between its halves.

Forward pass, loss, metrics and gradients come first, compiled by XLA where the model says so; then the one message;
then the update. Keras updates its metrics after the optimizer has run, from predictions that were made before: here
they are updated first, so that what they have seen rides on the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import has_mask, loss_tracker
from kungfu.keras.metrics import SummedMetrics
from kungfu.training.job_loop import JobLoop

__all__ = ["job_step", "step_alone"]

Step = Callable[[Any], dict[str, Any]]


def job_step(model: Any, loop: JobLoop, metrics: SummedMetrics, *, asks_to_stop: tf.Variable) -> Step:
    """The step of a peer of a job.

    Args:
        model: Compiled and built.
        loop: Averages over the peers.
        metrics: Adds up what the model's metrics see.
        asks_to_stop: 1.0 where this peer's callbacks want training to stop; rank 0's counts.

    Returns:
        A function of a batch in the structure of ``fit``. It gives ``logs``, the metrics of the epoch so far, equal on
        all peers, and ``stops``, above 0 where rank 0 asked to stop before this step.
    """
    forward = _compiled(model, _gradients)

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> dict[str, Any]:
        anew = tf.equal(loop.progress.offset.read_value(), 0)
        metrics.begin()
        gradients, loss = forward(model, data)
        stops = tf.where(tf.equal(loop.rank_variable, 0), asks_to_stop.read_value(), 0.0)
        means, (*sums, stops) = loop.average_and_sum(gradients, [*metrics.seen(), stops], loss=loss)
        _apply(model, means)
        metrics.add(sums, anew=anew)
        return {"logs": model.get_metrics_result(), "stops": stops}

    return step


def step_alone(model: Any, average: Callable[..., Any]) -> Step:
    """The step of a program that runs alone under policies: what Keras would do, seen by them.

    Args:
        model: Compiled and built.
        average: ``Training.average``.
    """
    forward = _compiled(model, _gradients)

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> dict[str, Any]:
        gradients, loss = forward(model, data)
        _apply(model, average(gradients, loss=loss))
        return dict(model.get_metrics_result())

    return step


def _gradients(model: Any, data: Any) -> tuple[list[Any], Any]:
    """Graph: one gradient for each trainable weight, and the loss; the metrics have seen the batch."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    weights = model.trainable_weights
    with tf.GradientTape() as tape:
        predicted = model(x, training=True) if _takes_training(model.call) else model(x)
        _refuse_masks(predicted)
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
    more = {"training": True} if _takes_training(model.compute_loss) else {}
    return model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, **more)


def _takes_training(function: Callable[..., Any]) -> bool:
    return "training" in inspect.signature(function).parameters


def _refuse_masks(predicted: Any) -> None:
    if any(has_mask(one) for one in tf.nest.flatten(predicted)):
        raise UsageError(
            "the output of the model has a mask, so its loss is a mean over the positions that are not masked, of "
            "which the peers have different numbers; kungfu weights gradients by samples, so the result would differ "
            "from that of the whole batch: end the mask before the output (a layer with supports_masking = False), or "
            "run the script without kungfu-run"
        )


def _compiled(model: Any, forward: Callable[[Any, Any], tuple[list[Any], Any]]) -> Callable[..., Any]:
    """Forward and backward pass in a function of their own, for XLA, where the model was compiled for it."""
    if not model.jit_compile:
        return forward

    there: list[bool] = []  # which of the gradients are, as the trace finds out; a compiled function gives no ``None``

    @tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
    def within(data: Any) -> tuple[list[Any], Any]:
        gradients, loss = forward(model, data)
        there[:] = [one is not None for one in gradients]
        return [tf.convert_to_tensor(one) for one in gradients if one is not None], loss

    def compiled(_: Any, data: Any) -> tuple[list[Any], Any]:
        given, loss = within(data)
        found = iter(given)
        return [next(found) if is_there else None for is_there in there], loss

    return compiled
