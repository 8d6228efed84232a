"""The training that all systems share: the same state and the same step.

The state is mostly ballast: 25 variables of equal size that are not trained, because an all-reduce of all of them would
dominate the step. Each step writes one of them, so that no system can use an old copy. A small network is trained. The
device time of a step is a sleep, since the machine may have fewer cores than the job has workers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

__all__ = ["BALLAST", "SAMPLES_EACH", "WIDTHS", "arguments", "ballast_shape", "data", "device"]

BALLAST, SAMPLES_EACH = 25, 32
WIDTHS = (64, 128, 10)  # of the network's layers, from input to output


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Adds a worker's common arguments to a parser, and parses the command line."""
    parser.add_argument("--stamps", type=Path, required=True, help="folder for the stamps")
    parser.add_argument("--megabytes", type=float, required=True, help="float32 state")
    parser.add_argument("--device-s", type=float, required=True, help="emulated device time of a step")
    return parser.parse_args()


def ballast_shape(megabytes: float) -> tuple[int, ...]:
    """The shape of each of the 25 variables that form the ballast.

    >>> ballast_shape(100)
    (1000000,)
    """
    return (round(megabytes * 1e6 / 4 / BALLAST),)


def data() -> tuple[np.ndarray, np.ndarray]:
    """The samples and their labels."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(4096, WIDTHS[0])).astype(np.float32), rng.integers(0, WIDTHS[-1], 4096)


def device(seconds: float) -> None:
    """Sleeps for the device's time of a step."""
    time.sleep(seconds)
