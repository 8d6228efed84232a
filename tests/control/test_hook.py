"""What a Python hook may ask for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu.control.hook import Control
from kungfu.errors import PolicyError


def test_the_last_size_that_a_hook_asks_for_counts_rounded() -> None:
    control = Control(size=2, step=7)
    assert control.wanted is None
    control.barrier()
    control.rescale(3)
    control.rescale(4.6)
    assert control.wanted == 5


@pytest.mark.parametrize("peers", [0, 0.4, -1, -1e300])
def test_less_than_a_peer_asks_for_the_fewest(peers: float) -> None:
    control = Control(size=2, step=7)
    control.rescale(peers)
    assert (control.wanted, control.passed_over) == (1, "")


def test_more_than_any_job_can_have_asks_for_the_most() -> None:
    control = Control(size=2, step=7)
    control.rescale(1e300)
    assert control.wanted == 1_000_000


@pytest.mark.parametrize("peers", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_is_not_finite_asks_for_nothing_and_what_was_asked_before_stands(peers: float) -> None:
    control = Control(size=2, step=7)
    control.rescale(peers)
    assert (control.wanted, control.passed_over) == (None, f"rescale({float(peers)}) asks for nothing")
    control.rescale(3)
    control.rescale(peers)
    assert control.wanted == 3


@pytest.mark.parametrize("peers", ["four", None, [4]])
def test_what_is_no_number_is_refused(peers: Any) -> None:
    with pytest.raises(PolicyError, match=r"control.rescale was given .*; give a number of peers"):
        Control(size=2, step=7).rescale(peers)
