"""Listing 1 of the KungFu paper, on scikit-learn's handwritten digits: a hook adapts the cluster to the gradient noise.

    kungfu-run -np 2 --min 2 --max 4 python examples/listing_1.py --device-ms 20

The listing is below line by line, with its names and order, and the numbers of its lines. Adapted are:

- line 7, which smooths the noise scale in Python (``tr.exp_decay(noise, 0.01)``). Here the monitor smooths it with the
  same decay (line 16): numerator and denominator separately, since their ratio cannot be averaged, and in the training
  graph, so that joining peers receive the smoothed values;
- lines 14, 16 and 17, which are one message: the noise scale's sums over the peers are sent with the gradients.
  `average` is the all-reduce of line 14, and the monitor's value is the same on all peers, as after line 17;
- lines 18 and 19, which are a policy, so that it can be checked before the first step. The listing calls its hook in
  every step; to call it less often, write ``ctrl.every(50)``.

The barriers of lines 8 and 10 have no further effect, since all peers call a hook between the same two steps.
At size 1 there is no noise scale, and a rescale to NaN requests nothing: hence ``--min 2``.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import kungfu as kf
from kungfu import control as ctrl
from kungfu import monitor as mon

GPU_BATCH_SIZE = 16


def adapt_batch_size(ctrl: Any, noise: float) -> None:  # line 6
    n_peers = noise / GPU_BATCH_SIZE  # line 7
    ctrl.barrier()  # line 8
    ctrl.rescale(n_peers)  # line 9
    ctrl.barrier()  # line 10


@kf.policy
def listing_1(training: Any) -> ctrl.Rule:
    avg_noise = mon.gradient_noise_scale(training, decay=0.01)  # lines 16 and 17
    return ctrl.always().call(adapt_batch_size, avg_noise)  # lines 18 and 19


def main() -> None:
    """Builds the driver program, lines 12 to 19, and runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--device-ms", type=float, default=0.0, help="emulated device time of a step")
    given = parser.parse_args()

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimiser = keras.optimizers.SGD(0.5)
    training = kf.attach(model, optimiser, policies=[listing_1()])

    @training.step
    def build_driver_program(sample: tf.Tensor, label: tf.Tensor) -> None:  # line 12
        with tf.GradientTape() as tape:
            loss = loss_of(label, model(sample, training=True))
        grads = tape.gradient(loss, model.trainable_variables)  # line 13
        avg_grads = training.average(grads, loss=loss)  # line 14
        optimiser.apply_gradients(zip(avg_grads, model.trainable_variables, strict=True))  # line 15

    digits = load_digits()
    data = ((digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64))
    for sample, label in training.batches(data, batch_size=2 * GPU_BATCH_SIZE, epochs=given.epochs, seed=0):
        time.sleep(given.device_ms / 1000)
        build_driver_program(sample, label)


if __name__ == "__main__":
    main()
