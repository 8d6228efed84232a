"""The training in plain TensorFlow, for the workers of the other systems."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks.elasticity import work

__all__ = ["Plain"]


class Plain:
    """The state as plain variables, and a training step; ``wishes`` is the sum of the workers' wishes."""

    def __init__(self, megabytes: float) -> None:
        rng = np.random.default_rng(0)
        pairs = zip(work.WIDTHS, work.WIDTHS[1:], strict=False)
        self.weights = [tf.Variable(rng.normal(size=pair, scale=0.1).astype(np.float32)) for pair in pairs]
        self.biases = [tf.Variable(tf.zeros([width])) for width in work.WIDTHS[1:]]
        self.ballast = [tf.Variable(tf.zeros(work.ballast_shape(megabytes))) for _ in range(work.BALLAST)]
        self.variables = [*self.weights, *self.biases, *self.ballast]
        self.images, self.labels = work.data()
        self._step = tf.function(self._trained)

    def step(self, count: int, *, rank: int, wish: float = 0.0) -> float:
        """Trains on this worker's samples of a step; returns the sum of all workers' wishes."""
        start = (count * 8 + rank) * work.SAMPLES_EACH % len(self.images)
        taken = slice(start, start + work.SAMPLES_EACH)
        return float(self._step(self.images[taken], self.labels[taken], tf.constant(count), tf.constant(wish)))

    def _trained(self, x: tf.Tensor, y: tf.Tensor, count: tf.Tensor, wish: tf.Tensor) -> tf.Tensor:
        trained = [*self.weights, *self.biases]
        with tf.GradientTape() as tape:
            for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
                x = tf.nn.relu(x @ weight + bias)
            logits = x @ self.weights[-1] + self.biases[-1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        # Single ops, which Horovod fuses: its elastic loop does not handle the errors of the grouped op.
        *gradients, wishes = (hvd.allreduce(one, op=hvd.Average) for one in [*tape.gradient(loss, trained), wish])
        for variable, gradient in zip(trained, gradients, strict=True):
            variable.assign_sub(0.01 * gradient)
        rewrites = [lambda one=one: one.assign(one * 0.999 + 0.001) is None for one in self.ballast]
        tf.switch_case(count % work.BALLAST, rewrites)
        return wishes
