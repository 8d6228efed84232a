"""Trials in a queue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.tune.simulate.chains import assign, slowest_chain
from tests.tune.instances import MANY

DURATIONS = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=20)


def test_each_trial_goes_to_the_first_chain_that_is_free() -> None:
    assert assign([5, 2, 1, 9, 1], chains=2) == [-1, -1, 1, 2, 0]
    assert slowest_chain(np.array([[5.0], [2], [1], [9], [1]]), chains=2) == pytest.approx(12)


@MANY
@given(DURATIONS, st.integers(1, 25))
def test_no_chain_idles_while_a_trial_waits(durations: list[float], chains: int) -> None:
    found = float(slowest_chain(np.array(durations)[:, None], chains=chains)[0])
    share = sum(durations) / chains
    assert max(max(durations), share) <= found <= share + max(durations) * (1 - 1 / chains) + 1e-9


@MANY
@given(DURATIONS, st.integers(1, 25))
def test_the_chains_as_assigned_end_when_the_slowest_is_said_to(durations: list[float], chains: int) -> None:
    ends: list[float] = []
    for duration, before in zip(durations, assign(durations, chains=chains), strict=True):
        ends.append(duration + (ends[before] if before >= 0 else 0.0))
    assert max(ends) == pytest.approx(slowest_chain(np.array(durations)[:, None], chains=chains)[0])
