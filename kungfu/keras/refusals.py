"""What ``fit`` cannot do under kungfu yet, told before the first step, with the way out.

A job that trained it all the same would give other numbers than Keras, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError

__all__ = ["refuse_in_job", "refuse_step"]

_LOOP = "write the loop with kf.attach() and training.step (README), or run the script without kungfu-run"


def refuse_step(model: Any) -> None:
    """Raises ``UsageError`` for a training step that does not run as a graph, or shares it with a strategy."""
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


def refuse_in_job(model: Any, arguments: Mapping[str, Any]) -> None:
    """Raises ``UsageError`` for what the peers of a job cannot do together yet.

    Args:
        model: A compiled one.
        arguments: Those of ``fit`` by name, all of them.
    """
    refuse_step(model)
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
