"""A variational autoencoder with a custom training step, on scikit-learn's digits: alone, or as a job.

    python examples/keras/autoencoder.py
    kungfu-run -np 2 --max 4 python examples/keras/autoencoder.py

Without the line marked "the line", this is a script without kungfu.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import kungfu as kf

CODE = 4  # numbers in the code of an image


class Autoencoder(keras.Model):
    """Encodes images as distributions of codes, and decodes codes to images (Kingma and Welling, 2014)."""

    def __init__(self, encoder: keras.Model, decoder: keras.Model) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.seeds = keras.random.SeedGenerator(7)
        self.loss_tracker = keras.metrics.Mean("loss")
        self.pixels, self.divergence = keras.metrics.Mean("pixels"), keras.metrics.Mean("divergence")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.loss_tracker, self.pixels, self.divergence]

    def losses_of(self, data: object) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The losses of each image: the reconstruction error, the divergence of its codes from normal ones, the sum."""
        images, noise, _ = keras.utils.unpack_x_y_sample_weight(data)
        mean, log_variance = self.encoder(images)
        if noise is None:
            noise = keras.random.normal(tf.shape(mean), seed=self.seeds)
        decoded = self.decoder(mean + tf.exp(0.5 * log_variance) * noise)
        pixels = tf.reduce_sum(keras.losses.binary_crossentropy(images, decoded), axis=(1, 2))
        divergence = -0.5 * tf.reduce_sum(1.0 + log_variance - mean**2 - tf.exp(log_variance), axis=1)
        return pixels, divergence, pixels + divergence

    def told(self, pixels: tf.Tensor, divergence: tf.Tensor, loss: tf.Tensor) -> dict[str, tf.Tensor]:
        """Updates the metrics by a batch, and returns their results."""
        self.pixels.update_state(pixels)
        self.divergence.update_state(divergence)
        self.loss_tracker.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        weights = self.trainable_weights
        with tf.GradientTape() as tape:
            pixels, divergence, loss = self.losses_of(data)
            mean = tf.reduce_mean(loss)
        self.optimizer.apply_gradients(zip(tape.gradient(mean, weights), weights, strict=True))
        return self.told(pixels, divergence, loss)

    def test_step(self, data: object) -> dict[str, tf.Tensor]:
        return self.told(*self.losses_of(data))


def build() -> Autoencoder:
    """The model of two small networks, compiled."""
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1))
    hidden = keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(image)
    hidden = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(hidden))
    encoder = keras.Model(image, [keras.layers.Dense(CODE)(hidden), keras.layers.Dense(CODE)(hidden)], name="encoder")
    decoder = keras.Sequential(
        [
            keras.Input((CODE,)),
            keras.layers.Dense(4 * 4 * 32, activation="relu"),
            keras.layers.Reshape((4, 4, 32)),
            keras.layers.Conv2DTranspose(32, 3, strides=2, padding="same", activation="relu"),
            keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ],
        name="decoder",
    )
    model = Autoencoder(encoder, decoder)
    model.compile(optimizer="adam")
    return model


def main() -> None:
    """Trains, and prints the reconstruction error of held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="batch size of the whole job")
    parser.add_argument(
        "--float64", action="store_true", help="compute in float64, with noise that comes with the data"
    )
    given = parser.parse_args()
    if given.float64:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")

    images = (load_digits().images[..., None] / 16.0).astype(keras.config.floatx())
    noise = np.random.default_rng(0).normal(size=(len(images), CODE)).astype(keras.config.floatx())
    train, test = slice(0, 1440), slice(1440, None)
    model = build()

    kf.keras.attach(model, policies=[kf.policies.gns_batch(max_peers=4)])  # the line

    history = model.fit(
        images[train], noise[train] if given.float64 else None, batch_size=given.batch_size, epochs=given.epochs,
        validation_data=(images[test], noise[test] if given.float64 else None), verbose=2,
    )  # fmt: skip
    decoded = model.decoder.predict(model.encoder.predict(images[test], verbose=0)[0], verbose=0)
    print(f"loss on {len(images[test])} held-out images: {history.history['val_loss'][-1]:.4f}")
    print(f"mean squared error of a pixel: {np.mean((decoded - images[test]) ** 2):.4f}")


if __name__ == "__main__":
    main()
