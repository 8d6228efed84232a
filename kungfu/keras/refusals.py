"""Refusals of features of ``fit`` that a job does not support yet, before the first step and with an alternative.

A job that trained with them would silently give other numbers than Keras.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import all_layers
from kungfu.training.data.sample_source import is_source

_LOOP = "write the loop with kf.attach() and training.step (README), or run the script without kungfu-run"


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


def refuse_samples(data: Any, *, to: str) -> None:
    """Raises ``UsageError`` for samples of ``kf.data`` in an argument that accepts only Keras' kinds of data.

    Args:
        data: The value of the argument.
        to: The call or argument for the message, such as ``model.evaluate()``.
    """
    if is_source(data):
        raise UsageError(
            f"{to} was given {type(data).__name__} of kf.data, which only the training data of model.fit() can be: "
            "give its .dataset(batch_size), a tf.data.Dataset of the same samples"
        )


def refuse_in_job(model: Any, arguments: Mapping[str, Any]) -> None:
    """Raises ``UsageError`` for a ``fit`` that a job does not support yet.

    Args:
        model: A compiled model.
        arguments: All arguments of ``fit`` by name.
    """
    refuse_step(model)
    _refuse_fixed_batch(model)
    if type(model).fit is not keras.Model.fit:
        raise UsageError(
            f"{type(model).__name__}.fit() is the program's own: under kungfu-run the loop is kungfu's; {_LOOP}"
        )
    for loss in tf.nest.flatten(model.loss):
        if not isinstance(loss, str) and getattr(loss, "reduction", "mean") in (None, "none"):
            raise UsageError(
                f"the loss {loss.name!r} has the reduction {loss.reduction!r} under kungfu-run: it does not say what "
                "the sum over the batch is divided by; give reduction='sum_over_batch_size', or 'sum'"
            )
    for name in ("epochs", "initial_epoch"):
        if not isinstance(arguments[name], int) or arguments[name] < 0:
            raise UsageError(f"model.fit({name}={arguments[name]!r}): must be an integer of at least 0")


def _refuse_fixed_batch(model: Any) -> None:
    """Refuses models with a fixed batch size: a peer's slice differs between peers, and after each rescale."""
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
