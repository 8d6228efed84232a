"""A generative adversarial network with a custom training step, on scikit-learn's digits: alone, or as a job.

    python examples/keras/gan.py
    kungfu-run -np 2 --max 4 python examples/keras/gan.py

Each step applies gradients twice, first the discriminator's and then the generator's, each by a separate optimizer. In
a job both are averaged over the peers. Without the line marked "the line", this is a script without kungfu.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import kungfu as kf

NOISE = 16  # random numbers per generated image


class GAN(keras.Model):
    """A generator, trained to deceive a discriminator."""

    def __init__(self, discriminator: keras.Model, generator: keras.Model) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seeds = keras.random.SeedGenerator(7)
        self.d_loss, self.g_loss = keras.metrics.Mean("d_loss"), keras.metrics.Mean("g_loss")

    def compile(self, d_optimizer: keras.Optimizer, g_optimizer: keras.Optimizer, loss: keras.Loss) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.judge = d_optimizer, g_optimizer, loss

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.d_loss, self.g_loss]

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        """Trains on images and on noise for generated images; draws the noise if the data have none."""
        images, noise, _ = keras.utils.unpack_x_y_sample_weight(data)
        count = tf.shape(images)[0]
        if noise is None:
            noise = keras.random.normal((count, NOISE), seed=self.seeds)
        real, made = tf.ones((count, 1)), tf.zeros((count, 1))

        with tf.GradientTape() as tape:
            judged = self.discriminator(tf.concat([images, self.generator(noise)], axis=0), training=True)
            d_loss = self.judge(tf.concat([real, made], axis=0), judged)
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))

        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise, training=True))
            g_loss = self.judge(real, judged)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))

        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def build() -> GAN:
    """The model of two small networks, compiled."""
    keras.utils.set_random_seed(0)
    discriminator = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, strides=2, padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Conv2D(64, 3, strides=2, padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ],
        name="discriminator",
    )
    generator = keras.Sequential(
        [
            keras.Input((NOISE,)),
            keras.layers.Dense(4 * 4 * 32),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Reshape((4, 4, 32)),
            keras.layers.Conv2DTranspose(32, 4, strides=2, padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )
    model = GAN(discriminator, generator)
    model.compile(
        d_optimizer=keras.optimizers.Adam(5e-4, beta_1=0.5),
        g_optimizer=keras.optimizers.Adam(5e-4, beta_1=0.5),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


def main() -> None:
    """Trains, and prints the distance between generated and real images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="batch size of the whole job")
    parser.add_argument(
        "--float64", action="store_true", help="compute in float64, with noise that comes with the data"
    )
    given = parser.parse_args()
    if given.float64:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")

    images = (load_digits().images[..., None] / 16.0).astype(keras.config.floatx())
    draw = np.random.default_rng(0)
    noise = draw.normal(size=(len(images), NOISE)).astype(keras.config.floatx()) if given.float64 else None
    model = build()

    kf.keras.attach(model, policies=[kf.policies.gns_batch(max_peers=4)])  # the line

    model.fit(images, noise, batch_size=given.batch_size, epochs=given.epochs, verbose=2)
    made = model.generator.predict(draw.normal(size=(200, NOISE)), verbose=0)
    nearest = [np.min(np.mean((images - one) ** 2, axis=(1, 2, 3))) for one in made]
    print(f"mean squared distance of 200 images to the nearest real one: {np.mean(nearest):.4f}")
    for row in made[0, ..., 0]:
        print("".join(" .:-=+*#%@"[min(9, int(value * 10))] * 2 for value in row).rstrip())


if __name__ == "__main__":
    main()
