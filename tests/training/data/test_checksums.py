"""Checksums of samples: when targets alone count."""

from __future__ import annotations

import numpy as np
import pytest

from kungfu.training.data.checksums import order_checksum, samples_checksum


@pytest.mark.parametrize(
    ("targets", "identify"),
    [
        (np.arange(9), False),  # 9! = 362,880 orders are fewer than 2**20
        (np.arange(10), True),  # 10! = 3,628,800
        (np.arange(22) % 2, False),  # 22! / (11! 11!) = 705,432
        (np.arange(24) % 2, True),  # 24! / (12! 12!) = 2,704,156
        (None, False),
    ],
)
def test_inputs_count_unless_the_targets_have_a_million_orders(targets: np.ndarray | None, identify: bool) -> None:
    """Inputs that each peer changes at random are no error; peers with other samples are, and not by luck only."""
    rows = 10 if targets is None else len(targets)
    x, augmented = np.zeros(rows), np.arange(float(rows))
    assert (samples_checksum((x, targets)) == samples_checksum((augmented, targets))) is identify
    assert (order_checksum(x, targets) == order_checksum(augmented, targets)) is identify
