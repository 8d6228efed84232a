"""A job that writes checkpoints while it trains, and resumes from the newest one, with any number of peers.

    kungfu-run -np 2 --logdir first python examples/resume.py --epochs 3
    kungfu-run -np 3 --logdir second --resume first/checkpoints python examples/resume.py --epochs 5

A policy requests a checkpoint every 20 steps. The program needs no code for resuming: ``--resume`` sets model,
optimizer, policies and the position in the data before the first step.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import kungfu as kf


@kf.policy
def checkpoints(training: kf.TrainingSignals, *, every: int) -> kf.Rule:
    """The rule that requests a checkpoint every ``every`` steps."""
    return kf.control.every(every).checkpoint()


def main() -> None:
    """Trains, and counts the steps of this run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()

    keras.utils.set_random_seed(0)
    model, optimizer = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)]), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    training = kf.attach(model, optimizer, policies=[checkpoints(every=20)])

    @training.step
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    digits = load_digits()
    data = ((digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64))
    losses = []
    for x, y in training.batches(data, batch_size=64, epochs=given.epochs, seed=0):
        loss = train_step(x, y)
        if loss is not training.SKIPPED:
            losses.append(float(loss))
    if training.rank == 0:
        # A finished job that is resumed has no steps left.
        ended = f"; loss {losses[-1]:.3f}" if losses else ""
        print(f"this run did {len(losses)} steps, up to step {training.step_number} of the job{ended}")


if __name__ == "__main__":
    main()
