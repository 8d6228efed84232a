"""The training of every system: the same state, the same step.

The state is mostly ballast: 25 variables of equal size that are not trained, because an all-reduce of as much would
fill the step. Each step writes one of them, so that no system can use a copy that it made long ago. What
is trained is a small network. The time that a step takes on a device is a sleep: the machine may have fewer cores than
the job has workers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

__all__ = ["BALLAST", "SAMPLES_EACH", "WIDTHS", "arguments", "ballast_shape", "data", "device"]

BALLAST, SAMPLES_EACH = 25, 32
WIDTHS = (64, 128, 10)  # of the network, from its input to its output


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line of a worker."""
    parser.add_argument("--stamps", type=Path, required=True, help="folder for the stamps")
    parser.add_argument("--megabytes", type=float, required=True, help="float32 state")
    parser.add_argument("--device-s", type=float, required=True, help="emulated device time of a step")
    return parser.parse_args()


def ballast_shape(megabytes: float) -> tuple[int, ...]:
    """The shape of one of the variables that make up the state.

    >>> ballast_shape(100)
    (1000000,)
    """
    return (round(megabytes * 1e6 / 4 / BALLAST),)


def data() -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(4096, WIDTHS[0])).astype(np.float32), rng.integers(0, WIDTHS[-1], 4096)


def device(seconds: float) -> None:
    """Emulates the device's time for the step."""
    time.sleep(seconds)
