"""First fit and prefix against the loops that define them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kungfu.schedule.rigid import first_fit_mask, prefix_that_fits
from tests.schedule.instances import thorough

sizes = st.lists(st.integers(1, 6), max_size=12)


@thorough
@given(wanted=sizes, free=st.integers(0, 20))
def test_first_fit_serves_exactly_whom_the_plain_loop_serves(wanted: list[int], free: int) -> None:
    left, served = free, []
    for size in wanted:
        served.append(size <= left)
        left -= size if size <= left else 0
    assert first_fit_mask(np.array(wanted, dtype=np.int64), free=free).tolist() == served


@thorough
@given(wanted=sizes, free=st.integers(0, 20))
def test_the_prefix_ends_at_the_first_that_does_not_fit(wanted: list[int], free: int) -> None:
    count = prefix_that_fits(np.array(wanted, dtype=np.int64), free=free)
    assert sum(wanted[:count]) <= free
    assert count == len(wanted) or sum(wanted[: count + 1]) > free
