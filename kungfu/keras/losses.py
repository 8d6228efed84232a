"""Losses of the whole batch: each is divided by what the slices of all peers have together.

A loss is a sum over the batch, divided by its *denominator*: the samples, the sum of their weights, the positions that
are not masked, or 1. With numerators ``N_r`` and denominators ``D_r`` of rank ``r``, which has ``s_r`` of ``T``
samples, the loss of the whole batch is ``sum(N_r) / sum(D_r)``, while gradients are weighted by samples. So a peer
scales its loss ``N_r / D_r`` by ``(D_r / sum(D_r)) * (T / s_r)``: the mean over the peers, weighted by samples, of the
loss and of its gradients, is then that of the whole batch, term by term. What is no reduced loss of Keras' (weights'
regularizers, ``add_loss``) stays as it is, and counts as a mean over samples: once.

Where the denominator is the number of samples the scale is 1, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kungfu.framework_internals import added_to_unmasked, is_in_xla_context, reductions_by
from kungfu.training.loop.job_loop import JobLoop

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class NeedsMessageError(Exception):
    """A loss is to be scaled inside of a function that XLA compiles, where no message can be sent."""


class WholeBatchLosses:
    """Scales the losses of one peer so that their mean over the peers, weighted by samples, is that of the whole batch.

    Args:
        loop: Sums denominators over the peers.

    Cost:
        A message of two numbers per denominator that is not the number of samples, before that of the gradients.
    """

    def __init__(self, loop: JobLoop) -> None:
        self._loop = loop
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
        """Graph: float64; 0 where this peer has no samples, or no peer has anything to divide by.

        Keras adds ``added`` to the denominator, of a slice as of a whole batch: once, not once per peer.
        """
        samples = tf.cast(self._loop.place.samples, tf.float64)
        own = [samples]
        if denominator is not None:  # without samples the slice is another peer's sample
            own.append(tf.where(samples > 0, tf.cast(denominator, tf.float64), 0.0))
        (come,) = self._loop.sum_before(tf.stack(own), tag="denominators")
        part = 1.0 if denominator is None else tf.math.divide_no_nan(own[1] + added, come[1] + added)
        # What a slice has does not depend on weights, though it is computed from values that do.
        return tf.stop_gradient(part * tf.math.divide_no_nan(come[0], samples))
