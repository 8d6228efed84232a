"""A peer under kungfu-run that trains the model of characters on the samples of an emulated run, in its order.

Rank 0 leaves its weights at the end in ``weights.npy``, as one vector like those of `CharacterModel`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.emulation.characters import LETTERS, CharacterModel, Samples, source_text

ORDER_SEED = 0  # of the loader


def drawn_samples(model: CharacterModel, *, seed: int, steps: int, batch: int) -> Samples:
    """The samples of all steps of an emulated run with a seed, step by step."""
    text, generator = source_text(), np.random.default_rng([seed, 1])
    each = [text.drawn(batch, context=model.context, generator=generator) for _ in range(steps)]
    return Samples(*(np.concatenate([getattr(one, name) for one in each]) for name in ("contexts", "following")))


def main() -> None:
    """Trains until all samples are done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stamps", type=Path, required=True, help="folder for the weights")
    for name, told in (("seed", "of the emulated run"), ("steps", "of the job"), ("batch", "samples of a step")):
        parser.add_argument(f"--{name}", type=int, required=True, help=told)
    parser.add_argument("--rate", type=float, required=True, help="learning rate")
    parser.add_argument("--every", type=int, required=True, help="steps from one average of models to the next; or 0")
    given = parser.parse_args()

    import keras
    import tensorflow as tf

    import kungfu as kf
    from kungfu.control.synchronisation import Synchronisation
    from kungfu.runtime.core.sample_slices import shuffled

    own = CharacterModel()
    model: Any = keras.Sequential(
        [
            keras.Input((own.context,), dtype="int64"),
            keras.layers.Embedding(LETTERS, own.embedding),
            keras.layers.Flatten(),
            keras.layers.Dense(own.hidden, activation="tanh"),
            keras.layers.Dense(LETTERS),
        ]
    )
    model.set_weights(own.layers(own.started(given.seed)))
    optimizer = keras.optimizers.SGD(given.rate)
    sync: Synchronisation = kf.control.average_models(every=given.every) if given.every else "gradients"
    training = kf.attach(model, optimizer, sync=sync)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @training.step
    def step(contexts: tf.Tensor, following: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(following, model(contexts, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    drawn = drawn_samples(own, seed=given.seed, steps=given.steps, batch=given.batch)
    # The loader puts the samples in its own order, and so back in that in which they were drawn.
    rows = np.argsort(shuffled(len(drawn), seed=ORDER_SEED, epoch=0))
    data = drawn.contexts[rows], drawn.following[rows]
    for contexts, following in training.batches(data, batch_size=given.batch, epochs=1, seed=ORDER_SEED):
        step(contexts, following)
    training.finish()
    if training.rank == 0:
        np.save(given.stamps / "weights.npy", np.concatenate([one.ravel() for one in model.get_weights()]))


if __name__ == "__main__":
    main()
