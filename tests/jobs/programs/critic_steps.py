"""A loop of the program's own whose step averages three times: two steps of a critic, and one of what it judges.

    critic_steps.py FILE [STEP]

What the weights came to is left in FILE. At STEP the peer of number 0 is killed after the critic's first update, and
before the message of its second one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf

SAMPLES, BATCH, EPOCHS, CRITIC_STEPS = 60, 15, 4, 2


def networks() -> tuple[Any, Any]:
    """A generator of float64 and its critic."""
    keras.utils.set_random_seed(3)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])
    return generator, keras.Sequential([keras.Input((2,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])


def main() -> None:
    dies_at = int(sys.argv[2]) if len(sys.argv) > 2 else None
    own_id = json.loads(os.environ.get("KUNGFU_SETTINGS", '{"peer": -1}'))["peer"]
    generator, critic = networks()
    of_generator, of_critic = keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.02)
    of_generator.build(generator.trainable_variables)
    of_critic.build(critic.trainable_variables)
    both = keras.Model()
    both.parts, both.built = [generator, critic], True
    training = kf.attach(both, [of_generator, of_critic])

    def maybe_die(done: Any, _: Any) -> Any:
        # Of two updates in each step.
        if own_id == 0 and dies_at is not None and int(done) == 2 * (dies_at - 1) + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.float64(0.0)

    @training.step(averages=CRITIC_STEPS + 1)
    def step(real: Any, noise: Any) -> None:
        for turn in range(CRITIC_STEPS):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(critic(generator(noise))) - tf.reduce_mean(critic(real))
                loss += 0.1 * tf.reduce_mean(critic(real) ** 2)
            gradients = tape.gradient(loss, critic.trainable_variables)
            if turn:
                nothing = tf.py_function(maybe_die, [of_critic.iterations.value, gradients[0]], tf.float64)
                nothing.set_shape(())
                gradients = [one + nothing for one in gradients]
            gradients = training.average(gradients, loss=loss)
            of_critic.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(critic(generator(noise)))
        gradients = training.average(tape.gradient(loss, generator.trainable_variables), loss=loss)
        of_generator.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))

    draw = np.random.default_rng(0)
    data = draw.normal(1.0, 0.3, size=(SAMPLES, 2)), draw.normal(size=(SAMPLES, 3))
    for batch in training.batches(data, batch_size=BATCH, epochs=EPOCHS, seed=0):
        step(*batch)
    kept = [*generator.weights, *critic.weights, *of_generator.variables, *of_critic.variables]
    found = {one.path: np.ravel(one).tolist() for one in kept}
    path = Path(sys.argv[1])
    beside = path.with_suffix(f".{own_id}")  # each peer that stays writes the same
    beside.write_text(json.dumps({"traces": training.traces(), "kept": found}))
    beside.replace(path)


if __name__ == "__main__":
    main()
