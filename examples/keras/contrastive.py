"""Contrastive pairs with a custom training step, on scikit-learn's digits: alone, or as a job.

    python examples/keras/contrastive.py
    kungfu-run -np 2 --max 4 python examples/keras/contrastive.py

Two views of an image should have similar codes, unlike those of other images; classes are not used (Chen et al., *A
simple framework for contrastive learning of visual representations*, 2020). A linear probe, with a separate optimizer,
learns to predict the classes from the codes. In a job a peer compares an image with the others of its slice.
Without the line marked "the line", this is a script without kungfu.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import kungfu as kf

WIDTH = 32  # numbers in the code of an image
TEMPERATURE = 0.2


class Contrastive(keras.Model):
    """An encoder that learns from pairs of views, and a probe that learns from its codes."""

    def __init__(self, encoder: keras.Model, head: keras.Model, probe: keras.Model) -> None:
        super().__init__()
        self.encoder, self.head, self.probe = encoder, head, probe
        self.seeds = keras.random.SeedGenerator(7)
        self.pair_loss, self.probe_loss = keras.metrics.Mean("pair_loss"), keras.metrics.Mean("probe_loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")

    def compile(self, pair_optimizer: keras.Optimizer, probe_optimizer: keras.Optimizer) -> None:
        super().compile()
        self.pair_optimizer, self.probe_optimizer = pair_optimizer, probe_optimizer
        self.judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.pair_loss, self.probe_loss, self.accuracy]

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """The probe's logits of the classes."""
        return self.probe(self.encoder(images))

    def views(self, data: object) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The images, two views of each, and the classes; draws the views if the data have none."""
        given, classes, _ = keras.utils.unpack_x_y_sample_weight(data)
        if isinstance(given, tuple | list):
            return (*given, classes)
        one, other = (self.changed(given) for _ in range(2))
        return given, one, other, classes

    def changed(self, images: tf.Tensor) -> tf.Tensor:
        """The images shifted by up to a pixel, with some pixels missing."""
        padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
        shift = tf.cast(keras.random.randint((2,), 0, 3, seed=self.seeds), tf.int32)
        moved = tf.slice(padded, [0, shift[0], shift[1], 0], [-1, 8, 8, 1])
        return moved * tf.cast(keras.random.uniform(tf.shape(moved), seed=self.seeds) > 0.1, moved.dtype)

    def pair_loss_of(self, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """The cross-entropy of identifying each view's partner among the other views of all images."""
        first, second = (
            keras.ops.normalize(self.head(self.encoder(views, training=True), training=True)) for views in (one, other)
        )
        alike = tf.matmul(first, second, transpose_b=True) / TEMPERATURE
        partners = tf.range(tf.shape(alike)[0])
        return 0.5 * (self.judge(partners, alike) + self.judge(partners, tf.transpose(alike)))

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        images, one, other, classes = self.views(data)
        with tf.GradientTape() as tape:
            pair_loss = self.pair_loss_of(one, other)
        weights = self.encoder.trainable_weights + self.head.trainable_weights
        self.pair_optimizer.apply_gradients(zip(tape.gradient(pair_loss, weights), weights, strict=True))

        codes = tf.stop_gradient(self.encoder(images))
        with tf.GradientTape() as tape:
            predicted = self.probe(codes, training=True)
            probe_loss = self.judge(classes, predicted)
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(probe_loss, weights), weights, strict=True))

        count = tf.shape(images)[0]
        self.pair_loss.update_state(pair_loss, sample_weight=count)
        self.probe_loss.update_state(probe_loss, sample_weight=count)
        self.accuracy.update_state(classes, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def build() -> Contrastive:
    """The model of three small networks, compiled."""
    keras.utils.set_random_seed(0)
    encoder = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(WIDTH, activation="relu"),
        ],
        name="encoder",
    )
    head = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH)], name="head")
    probe = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(10)], name="probe")
    model = Contrastive(encoder, head, probe)
    model.compile(pair_optimizer=keras.optimizers.Adam(1e-3), probe_optimizer=keras.optimizers.Adam(1e-2))
    return model


def main() -> None:
    """Trains, and prints the accuracy of classes predicted from codes learnt without classes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128, help="batch size of the whole job")
    parser.add_argument("--float64", action="store_true", help="compute in float64, with views that come with the data")
    given = parser.parse_args()
    if given.float64:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")

    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype(keras.config.floatx())
    train, test = slice(0, 1500), slice(1500, None)
    shown = images[train]
    if given.float64:
        shown = (shown, np.roll(shown, 1, axis=1), np.roll(shown, -1, axis=2))
    model = build()

    kf.keras.attach(model, policies=[kf.policies.gns_batch(max_peers=4)])  # the line

    model.fit(shown, digits.target[train], batch_size=given.batch_size, epochs=given.epochs, verbose=2)
    found = np.argmax(model.predict(images[test], verbose=0), axis=-1)
    print(f"accuracy of the probe on {len(found)} held-out images: {np.mean(found == digits.target[test]):.4f}")


if __name__ == "__main__":
    main()
