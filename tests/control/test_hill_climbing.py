"""The walk through cluster sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kungfu as kf
from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import SizeEstimate
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy
from kungfu.signal import Signal, SizeStatistics, Source

CALM = {"step": 1, "pending": False, "refused_size": 0}
NAN = math.nan
LARGEST = 20


def vector(values: dict[int, float], *, otherwise: float) -> Signal:
    """One entry a size."""
    made: Signal = kf.fold(lambda state, step: state, kf.ops.Filled(LARGEST + 1, otherwise), Source("step"))
    for size, value in values.items():
        made = ops.scatter(made, size, value)
    return made


def table(means: dict[int, float], *, errors: dict[int, float] | None = None, count: int = 30) -> SizeStatistics:
    """The statistics of these means, with their standard errors (0 where none is given) of `count` samples each."""
    variances = {size: (errors or {}).get(size, 0.0) ** 2 * count for size in means}
    return SizeStatistics(
        count=vector(dict.fromkeys(means, count), otherwise=0),
        mean=vector(means, otherwise=NAN),
        variance=vector(variances, otherwise=NAN),
        age=vector({}, otherwise=0),
    )


def difference(fewer: SizeEstimate, more: SizeEstimate) -> Signal:
    """An advantage: how much more the larger size measured."""
    return more.mean - fewer.mean


def wanted(
    statistics: SizeStatistics,
    *,
    size: int,
    advantage: Any = difference,
    limits: tuple[int, int] = (1, 8),
    refused: int = 0,
    **given: Any,
) -> float:
    """The size that the walk wants from here; NaN where it waits."""

    def body(training: Any) -> Any:
        climbed = control.hill_climb(
            advantage, statistics, **{"unit": 1, "min_peers": limits[0], "max_peers": limits[1], **given}
        )
        return control.always().call(lambda control, *values: None, climbed.named("wanted"))

    plan = compile_policies([Policy("walk", body)])
    agreed = {**CALM, "min_size": 1, "max_size": 99, "refused_size": refused}
    outcome = Replay(plan, size=size).step([{}] * size, agreed)
    return float(dict(zip(plan.watched_signals, outcome.watched, strict=True))["wanted"])


def walked(
    edges: dict[int, bool],
    *,
    start: int,
    unit: int = 1,
    limits: tuple[int, int] = (1, 8),
    refused: int = 0,
    **given: Any,
) -> list[int]:
    """The sizes visited from `start` on, where `edges` says of each size whether the next `unit` peers are worth it."""
    visited = [start]
    heights = {start % unit or unit: 0.0}
    for size in range(start % unit or unit, LARGEST - unit + 1, unit):
        heights[size + unit] = heights[size] + (1.0 if edges[size] else -1.0)
    while len(visited) < 30:
        seen = table({size: heights[size] for size in set(visited)})
        target = wanted(seen, size=visited[-1], unit=unit, limits=limits, refused=refused, **given)
        if target == visited[-1]:
            return visited
        visited.append(int(target))
    raise AssertionError(f"it never settles: {visited}")


def worth_up_to(last: int, *, unit: int = 1) -> dict[int, bool]:
    return {low: low + unit <= last for low in range(100)}


@pytest.mark.parametrize(
    ("edges", "start", "given", "visited"),
    [
        (worth_up_to(5), 2, {}, [2, 3, 4, 5, 6, 5]),  # it returns from the size that is not worth it
        # Figure 3 of the paper, right: from 8 up to 12 fails, so 4 is tried, and 8 turns out to be worth it.
        (worth_up_to(8, unit=4), 8, {"unit": 4, "limits": (1, 16)}, [8, 12, 4, 8]),
        (worth_up_to(2), 5, {}, [5, 6, 4, 3, 2, 1, 2]),  # down as far as it has to
        # At the upper limit it looks down first.
        (worth_up_to(8), 8, {}, [8, 7, 8]),
        (worth_up_to(4), 8, {}, [8, 7, 6, 5, 4, 3, 4]),
        (worth_up_to(5), 3, {"limits": (3, 3)}, [3]),
        (worth_up_to(8), 4, {"refused": 5}, [4, 3, 4]),  # a size that was refused is not tried again
    ],
)
def test_it_walks_to_the_last_size_that_is_worth_it(
    edges: dict[int, bool], start: int, given: dict[str, Any], visited: list[int]
) -> None:
    assert walked(edges, start=start, **given) == visited


NOISY = {2: 3.0, 3: 4.0}  # errors; of the difference: 5


@pytest.mark.parametrize(
    ("statistics", "size", "given", "expected"),
    [
        # Above its largest size it goes down to it without a measurement.
        (table({8: 10.0}), 12, {}, 8),
        (table({}), LARGEST + 5, {"limits": (3, 3)}, 3),
        (table({}), 8, {}, NAN),
        # With one measurement it adds the first peers; one with too few samples is waited for.
        (table({3: 10.0}), 3, {}, 4),
        (table({3: 10.0}, count=10), 3, {}, 4),
        (table({3: 10.0}, count=9), 3, {}, NAN),
        (table({2: 10.0}), 3, {}, NAN),
        # A clear gain needs few samples, and a clear loss is made sure of.
        (table({2: 10.0, 3: 12.0}, count=10), 3, {}, 4),
        (table({2: 12.0, 3: 10.0}, count=29), 3, {}, NAN),
        (table({1: 1.0, 2: 12.0, 3: 10.0}), 3, {}, 2),
        # A difference within three standard errors decides nothing, and the walk continues.
        (table({2: 19.0, 3: 10.0}, count=29, errors=NOISY), 3, {}, NAN),
        (table({2: 19.0, 3: 10.0}, errors=NOISY), 3, {}, 4),
        (table({1: 1.0, 2: 26.0, 3: 10.0}, errors=NOISY), 3, {}, 2),
        # A mean of zero without noise decides as any other, and equal ones are no gain.
        (table({1: 0.0, 2: 1.0, 3: 0.0}), 3, {}, 2),
        (table({2: 0.0, 3: 1.0}), 3, {}, 4),
        (table({1: 9.0, 2: 10.0, 3: 10.0}), 3, {}, 2),
        # It goes up again to a size that has come to look open.
        (table({7: 4.0, 8: 10.0, 9: 9.0}, errors={9: 1.0}), 8, {"limits": (1, 12)}, 9),
        (table({7: 4.0, 8: 10.0, 9: 6.9}, errors={9: 1.0}), 8, {"limits": (1, 12)}, 8),
        # A gain that is no number moves nothing but up.
        (table({2: 10.0, 3: 12.0}), 3, {"advantage": lambda fewer, more: more.mean * NAN}, 4),
    ],
)
def test_what_was_measured_decides_where_it_goes_next(
    statistics: SizeStatistics, size: int, given: dict[str, Any], expected: float
) -> None:
    np.testing.assert_equal(wanted(statistics, size=size, **given), expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"look_ahead": one}, "^look_ahead=.*takes a whole number of units") for one in (True, -1, 0.5, "1")),
        *(({"unit": one}, "takes a whole number of peers") for one in (0, True)),
        *(({"growth": one}, "^growth=.*takes one of .linear., .exponential.$") for one in ("doubling", 2)),
        *(({"min_peers": one}, "takes 1 <= min_peers <= max_peers") for one in (0, 5)),
        *((one, "takes 2 <= min_samples <= max_samples") for one in ({"min_samples": 1}, {"max_samples": 9})),
    ],
)
def test_a_walk_of_numbers_that_make_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        control.hill_climb(difference, table({1: 1.0}), **{"unit": 1, "min_peers": 1, "max_peers": 4, **given})


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 16)
@given(
    last=st.integers(1, 17),
    start=st.integers(1, 16),
    unit=st.integers(1, 3),
    growth=st.sampled_from(["linear", "exponential"]),
)
def test_it_settles_at_the_last_size_of_its_grid_that_is_worth_it(
    last: int, start: int, unit: int, growth: str
) -> None:
    grid = [size for size in range(1, 17) if (size - start) % unit == 0]
    worth = [size for size in grid[1:] if size <= last]
    found = walked(worth_up_to(last, unit=unit), start=start, unit=unit, limits=(1, 16), growth=growth)
    assert found[-1] == (worth[-1] if worth else grid[0])


def test_what_is_open_over_one_unit_is_judged_over_several() -> None:
    def per_peer(fewer: SizeEstimate, more: SizeEstimate) -> Signal:
        return (more.mean - fewer.mean) / (more.peers - fewer.peers) - 1.0

    errors = dict.fromkeys((2, 3, 4, 5), 0.6)
    flat = table({1: 1.0, 2: 10.0, 3: 10.0, 4: 10.0}, errors=errors)
    assert wanted(flat, size=4, advantage=per_peer) == 5  # over two units: -1 with an error of 0.42
    further = table({1: 1.0, 2: 10.0, 3: 10.0, 4: 10.0, 5: 10.0}, errors=errors)
    assert wanted(further, size=5, advantage=per_peer) == 6  # and not over more than half of the peers
    most = table({1: 1.0, 2: 10.0, 3: 10.0, 4: 10.0, 5: 10.0, 6: 10.0}, errors={**errors, 6: 0.6})
    assert wanted(most, size=6, advantage=per_peer) == 3  # over three: -1 with an error of 0.28


def test_a_gain_over_several_units_needs_few_samples_if_the_last_unit_has_a_gain_too() -> None:
    # By Amdahl's law the fourth to the eighth peer add 0.9 / 1.7 = 0.53 each, as does the eighth; the errors are 0.02
    # over four units, and 0.1 over one.
    sizes = {size: size / (1 + 0.1 * (size - 1)) for size in range(4, 9)}
    errors = {size: 0.01 * mean for size, mean in sizes.items()}

    def asked(required: float, **changed: float) -> float:
        measured = table({**sizes, 8: sizes[8] * changed.get("last", 1.0)}, errors=errors, count=10)
        return wanted(measured, size=8, advantage=efficiency(required), limits=(1, 16))

    assert [asked(required) for required in (0.4, 0.5)] == [9, pytest.approx(NAN, nan_ok=True)]
    # With 2 % less throughput, the last peer adds 0.39 only, and so it is judged by more samples.
    assert math.isnan(asked(0.4, last=0.98))


def test_it_looks_beyond_a_size_that_fails_where_it_is_asked_to() -> None:
    dip = {**worth_up_to(20), 4: False}  # the fifth peer costs what the sixth brings
    assert walked(dip, start=2)[-1] == 4
    assert walked(dip, start=2, look_ahead=2)[-1] == 8
    assert walked(worth_up_to(4), start=2, look_ahead=1) == [2, 3, 4, 5, 6, 4]


# ---- a knee, seen over several units -------------------------------------------------------------------------------


def efficiency(required: float) -> Any:
    """An advantage: the paper's scaling efficiency, minus the required one."""
    return lambda fewer, more: (more.mean / fewer.mean - 1) * fewer.peers / (more.peers - fewer.peers) - required


def amdahl(*sizes: int, share: float = 0.1, error: float = 0.008) -> SizeStatistics:
    """Throughputs by Amdahl's law, each with this relative error; an efficiency over d units is that of the last."""
    means = {size: size / (1 + share * (size - 1)) for size in sizes}
    return table(means, errors={size: error * mean for size, mean in means.items()})


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # The twelfth peer adds 0.43, which is seen against 6 peers; the eleventh adds 0.45, and the tenth 0.474.
        (12, 10),
        (11, 12),  # not shown yet
        (10, 10),
        (7, 7),  # up only by a shown gain
    ],
)
def test_from_a_failure_over_several_units_it_returns_to_the_last_size_with_a_gain(size: int, expected: int) -> None:
    sizes = range(2, 12 if size == 11 else 13)
    measured = amdahl(*sizes, error=0.006)
    assert wanted(measured, size=size, advantage=efficiency(0.47), limits=(1, 16)) == expected


def test_at_the_limit_an_open_comparison_asks_for_a_smaller_size() -> None:
    def asked(size: int, error: float) -> float:
        measured = amdahl(*range(size, 17), error=error)
        return wanted(measured, size=size, advantage=efficiency(0.3), limits=(1, 16))

    # The last of 16 peers adds 0.36, and it takes six units to see that this is more than 0.3.
    assert [asked(size, 0.006) for size in (16, 15, 12, 11, 10)] == [15, 14, 11, 10, 16]
    # A comparison over half of the peers is the last one: without a failure the job keeps its size.
    assert [asked(size, 0.1) for size in (9, 8)] == [8, 16]


def test_a_failure_over_a_narrow_range_asks_for_a_smaller_size() -> None:
    # Up from 8 peers: the eleventh adds 0.45, less than required, and 8 peers were never judged.
    measured = amdahl(8, 9, 10, 11)
    assert wanted(measured, size=11, advantage=efficiency(0.57), limits=(1, 16)) == 7
    # Seen from 5 peers, the seventh lacks less than an error (0.5625), and the eighth more (0.53).
    measured = amdahl(*range(5, 12))
    assert wanted(measured, size=5, advantage=efficiency(0.57), limits=(1, 16)) == 7
    assert [wanted(measured, size=size, advantage=efficiency(0.57), limits=(1, 16)) for size in (6, 7)] == [6, 7]


# ---- growth ----------------------------------------------------------------------------------------------------------


def test_an_exponential_walk_doubles_its_steps_and_halves_the_range_with_the_knee() -> None:
    limits = (1, 16)
    assert walked(worth_up_to(16), start=2, growth="exponential", limits=limits)[:5] == [2, 3, 5, 9, 16]
    found = walked(worth_up_to(11), start=2, growth="exponential", limits=limits)
    assert found == [2, 3, 5, 9, 16, 12, 14, 13, 12, 10, 11]
    assert walked(worth_up_to(2), start=16, growth="exponential", limits=limits)[:6] == [16, 15, 13, 9, 1, 5]
    assert walked(worth_up_to(12, unit=2), start=2, unit=2, growth="exponential", limits=limits)[-1] == 12
