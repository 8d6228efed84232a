"""Keras' own ``fit`` under kungfu-run: "never" loads kungfu, or calls it "around" a model that was attached."""

from __future__ import annotations

import sys

import keras
import numpy as np


def model() -> keras.Model:
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def fitted(one: keras.Model) -> None:
    one.fit(np.zeros((8, 2)), np.zeros((8, 1)), verbose=0)
    print("fit is over", flush=True)


def main(how: str) -> None:
    if how == "never":
        fitted(model())
        return
    import kungfu as kf

    first, other = model(), model()
    fitted(first)  # it may be pretraining: told, and done
    kf.attach(first, keras.optimizers.SGD(0.1))
    fitted(other)  # each peer's own affair
    fitted(first)


if __name__ == "__main__":
    main(sys.argv[1])
