"""What a Python hook may ask for."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize("peers", [0, 0.4, -1, math.nan, math.inf])
def test_a_size_that_is_none_is_refused(peers: float) -> None:
    with pytest.raises(PolicyError, match="a hook asked for a size that is none"):
        Control(size=2, step=7).rescale(peers)
