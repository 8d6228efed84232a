"""The repairing allocation against the plain greedy loop, and against brute force where greedy is best."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from kungfu_planning.schedule.cluster_policies.greedy import (
    Climbers,
    build_ladders,
    fill_gpus,
    relative_gain,
    saved_time,
)

MOST = 7


curve = st.lists(st.integers(1, 40), min_size=MOST + 1, max_size=MOST + 1).map(lambda rates: [0, *rates[1:]])
job = st.tuples(curve, st.integers(1, 3), st.integers(0, 4), st.integers(1, 9), st.floats(0, 1))


def _loop(rates, *, gain, weight, fewest, most, total) -> list[int]:
    """One GPU at a time to the largest gain above zero, ties to the first."""
    held = list(fewest)
    steps = [gain(row).tolist() for row in rates]
    for _ in range(total - sum(held)):
        gains = [w * s[n] if n < m else 0.0 for s, w, n, m in zip(steps, weight.tolist(), held, most, strict=True)]
        if max(gains) <= 0:
            break
        held[int(np.argmax(gains))] += 1
    return held


@pytest.mark.slow
@given(jobs=st.lists(job, min_size=1, max_size=5), more=st.integers(0, 20))
def test_any_guess_is_repaired_into_the_result_of_the_plain_loop(jobs, more: int) -> None:
    rates = np.array([rates for rates, *_ in jobs], dtype=np.float64)
    fewest = np.array([fewest for _, fewest, *_ in jobs])
    most = np.minimum(fewest + [extra for _, _, extra, *_ in jobs], MOST)
    weight = np.array([float(weight) for *_, weight, _ in jobs])
    guess = fewest + np.array([int(part * (m - f)) for (*_, part), m, f in zip(jobs, most, fewest, strict=True)])
    total = int(fewest.sum()) + more
    for gain in (relative_gain, saved_time):
        note(f"gain {gain.__name__}")
        ladders = build_ladders(rates, kind=np.arange(len(jobs)), fewest=fewest, most=most, gain=gain)
        found = fill_gpus(Climbers(ladders.steps, ladders.row, weight), start=guess, total=total)
        expected = _loop(rates, gain=gain, weight=weight, fewest=fewest.tolist(), most=most.tolist(), total=total)
        assert found.tolist() == expected


@st.composite
def concave(draw: st.DrawFn) -> list[float]:
    gains = sorted(draw(st.lists(st.integers(0, 20), min_size=9, max_size=9)), reverse=True)
    return [0.0, *np.cumsum([max(gains[0], 1) + 1.0, *gains]).tolist()]


@pytest.mark.slow
@given(
    jobs=st.lists(st.tuples(concave(), st.integers(1, 2), st.integers(1, 30)), min_size=1, max_size=4),
    total=st.integers(8, 10),
)
def test_for_concave_curves_greedy_is_as_good_as_the_best_of_all_allocations(jobs, total: int) -> None:
    rates = np.array([rates for rates, *_ in jobs])
    fewest = np.array([fewest for _, fewest, _ in jobs])
    work = np.array([float(units) for *_, units in jobs])
    ladders = build_ladders(
        rates, kind=np.arange(len(jobs)), fewest=fewest, most=np.full(len(jobs), 10), gain=saved_time
    )
    found = fill_gpus(Climbers(ladders.steps, ladders.row, work), start=fewest, total=total)
    costs = [[units / rate if rate else math.inf for rate in row] for row, _, units in jobs]
    best = min(
        sum(row[n] for row, n in zip(costs, shares, strict=True))
        for shares in product(*(range(few, 11) for _, few, _ in jobs))
        if sum(shares) <= total
    )
    assert sum(w / r[n] for w, r, n in zip(work, rates, found, strict=True)) == pytest.approx(best)


def test_gains_by_hand() -> None:
    rates = np.array([[0.0, 10.0, 18.0, 24.0, 28.0]])
    assert relative_gain(rates)[0].tolist() == pytest.approx([0, 0.8, 1 / 3, 1 / 6])
    assert (720 * saved_time(rates)[0]).tolist() == pytest.approx([0, 32, 10, 30 / 7])


def test_nobody_to_serve_is_served_nothing() -> None:
    nothing = np.empty(0, dtype=np.int64)
    assert fill_gpus(Climbers(np.zeros((1, 3)), nothing, np.empty(0)), start=nothing, total=4).tolist() == []
