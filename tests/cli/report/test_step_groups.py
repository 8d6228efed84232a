"""Groups of steps: bounded, whatever the length of a run, with medians near those of all steps, and every extreme."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.cli.report.step_groups import StepGroups


def grouped(steps: int, value: Callable[[int], float], *, most: int) -> StepGroups:
    groups = StepGroups(most)
    for step in range(1, steps + 1):
        groups.add(step, {"loss": value(step)})
    return groups


def test_a_short_run_is_known_step_by_step() -> None:
    groups = grouped(8, float, most=8)
    loss = groups.curve("loss")
    assert [*groups.firsts()] == [*groups.lasts()] == [*range(1, 9)]
    assert loss.low.tolist() == loss.values.tolist() == loss.high.tolist() == [*range(1, 9)]
    groups.add(5, {"loss": 9.0})
    assert [*groups.lasts()] == [1, 2, 3, 4, 5], "a step that is done again has its new value"
    assert groups.curve("loss").values.tolist() == [1.0, 2.0, 3.0, 4.0, 9.0]
    sizes = grouped(5, lambda step: 2.0 if step < 3 else 3.0, most=2).curve("loss")
    assert (sizes.low[0], sizes.values[0], sizes.high[0]) == (2.0, 3.0, 3.0), "no size is between two"


@given(st.integers(1, 700), st.sampled_from([2, 8, 32]))
def test_groups_follow_each_other_have_every_extreme_and_exact_medians_of_few_steps(steps: int, most: int) -> None:
    losses = [math.sin(step * 7919) for step in range(steps + 1)]
    groups = grouped(steps, lambda step: losses[step], most=most)
    firsts, lasts = [*map(int, groups.firsts())], [*map(int, groups.lasts())]
    assert len(groups) == len(lasts) <= most
    assert (firsts[0], lasts[-1]) == (1, steps)
    assert firsts[1:] == [last + 1 for last in lasts[:-1]]
    loss = groups.curve("loss")
    for first, last, low, median, high in zip(firsts, lasts, loss.low, loss.values, loss.high, strict=True):
        those = losses[first : last + 1]
        assert (low, high) == (min(those), max(those))
        if len(those) <= 16:
            assert median == pytest.approx(statistics.median(those))


@pytest.mark.parametrize("order", [lambda step: math.sin(step * 7919), float, lambda step: -float(step)])
def test_the_median_of_a_long_group_is_near_that_of_its_steps(order: Callable[[int], float]) -> None:
    groups = grouped(40_000, order, most=4)
    for first, last, median in zip(groups.firsts(), groups.lasts(), groups.curve("loss").values, strict=True):
        rising = sorted(order(step) for step in range(int(first), int(last) + 1))
        rank = sum(one < median for one in rising) / len(rising)
        assert 0.42 < rank < 0.58, (first, last)


def test_a_group_keeps_few_values_of_a_figure_however_many_steps_it_has() -> None:
    groups = grouped(100_000, lambda step: step * 0.7919 % 1, most=8)
    figure = groups._figures["loss"]
    assert len(figure.rows) <= 8 * 16
    assert sum(map(len, figure.folded)) <= 16 * 20
    assert len(groups._newest) <= 32


def test_a_figure_that_begins_late_or_is_rarely_known_is_not_known_elsewhere() -> None:
    groups = StepGroups(4)
    for step in range(1, 1001):
        known = {"late": 5.0} if step > 900 else {}
        groups.add(step, {**known, **({"rare": 7.0} if step % 100 == 0 else {})})
    assert groups.curve("late").low[-1] == 5.0
    assert math.isnan(groups.curve("late").values[0])
    assert {*groups.curve("rare").values} == {7.0}
    assert np.isnan(groups.curve("never").values).all()


@given(st.integers(2, 700), st.integers(1, 6), st.sampled_from([2, 8, 32]))
def test_a_group_counts_the_steps_that_have_no_number_and_most_of_them_are_a_gap(
    steps: int, every: int, most: int
) -> None:
    """Steps before the first number are not counted, nor those that do not tell the figure."""
    values = [math.nan if step < 3 or step % every else float(step) for step in range(steps + 1)]
    groups = StepGroups(most)
    for step in range(1, steps + 1):
        groups.add(step, {"noise": values[step], **({"rare": 7.0} if step % 50 == 0 else {})})
    first = next((step for step, value in enumerate(values) if not math.isnan(value)), steps + 1)
    noise = groups.curve("noise")
    spans = zip(groups.firsts(), groups.lasts(), noise.undefined, noise.values, strict=True)
    for begin, last, undefined, median in spans:
        those = values[max(first, int(begin)) : int(last) + 1]
        missing = sum(map(math.isnan, those))
        assert undefined == (missing / len(those) if those else 0.0)
        assert math.isnan(median) == (not those or 2 * missing > len(those))
    assert not groups.curve("rare").undefined.any()
    those = values[first:]
    assert groups.undefined("noise") == (sum(map(math.isnan, those)) / len(those) if those else 0.0)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 120)), max_size=12))
def test_steps_that_are_done_again_leave_groups_that_follow_each_other(bursts: list[tuple[int, int]]) -> None:
    groups, step = StepGroups(8), 0
    for count, back in bursts:
        step = max(0, step - back)
        for _ in range(count):
            step += 1
            groups.add(step, {"loss": float(step)})
        firsts, lasts = [*groups.firsts()], [*groups.lasts()]
        assert len(lasts) <= 8
        assert lasts[-1] == step
        assert all(first <= last for first, last in zip(firsts, lasts, strict=True))
        assert all(last < first for last, first in zip(lasts, firsts[1:], strict=False))
        assert len(groups.curve("loss").values) == len(lasts)
