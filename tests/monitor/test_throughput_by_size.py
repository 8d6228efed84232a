"""Throughput by cluster size, and how well a job scales by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.testing import run_policy


def shown(made: Callable[[Any], Any], **arrays: Any) -> list[float]:
    """A monitor's values step by step."""

    @kf.policy
    def watching(training: Any) -> Any:
        return kf.control.always().call(lambda control, value: None, made(training))

    return [next(iter(one.inputs.values())) for one in run_policy(watching(), arrays)]


def steps_at(*throughputs: tuple[int, float], lasting: int = 4, **others: Any) -> dict[str, Any]:
    """Views of some steps each: so many peers, with so many samples / s together."""
    sizes = [size for size, _ in throughputs for _ in range(lasting)]
    seconds = [
        [2 * size / rate if since > 1 else math.nan] * size for size, rate in throughputs for since in range(lasting)
    ]
    return {
        "size": sizes,
        "view": [number for number, _ in enumerate(throughputs) for _ in range(lasting)],
        "samples": [[2.0] * size for size in sizes],
        "step_seconds": seconds,
        "busy_seconds": seconds,
        **others,
    }


def counted(entry: int, *, last: bool = True, **arrays: Any) -> Any:
    """How many samples an entry has, after the last step or after each."""
    found = shown(lambda t: kf.monitor.throughput_by_size(t, 6, patience=8).statistics.count[entry], **arrays)
    return found[-1] if last else found


@pytest.mark.parametrize(
    ("fewer", "more", "unit", "efficiency"),
    [
        ((4, 400.0), (5, 500.0), 1, 1.0),
        ((4, 400.0), (5, 450.0), 1, 0.5),  # the example of the paper
        ((4, 400.0), (5, 400.0), 1, 0.0),
        ((4, 400.0), (5, 390.0), 1, -0.1),
        ((2, 200.0), (4, 300.0), 2, 0.5),
        ((2, 200.0), (4, 300.0), 1, math.nan),  # nothing was measured with 3 peers
    ],
)
def test_the_efficiency_is_what_an_added_peer_brings_relative_to_those_before(
    fewer: tuple[int, float], more: tuple[int, float], unit: int, efficiency: float
) -> None:
    found = shown(lambda t: kf.monitor.scaling_efficiency(t, 6, unit=unit), **steps_at(fewer, more))
    np.testing.assert_allclose(found[-1], efficiency, atol=1e-5)
    assert np.isnan(found[:6]).all()  # before two steps with more peers were timed


def test_alone_there_is_no_efficiency() -> None:
    assert np.isnan(shown(lambda t: kf.monitor.scaling_efficiency(t, 6), **steps_at((1, 100.0)))).all()


def test_steps_in_which_a_change_is_pending_do_not_count() -> None:
    arrays = steps_at((2, 200.0), lasting=6)
    assert counted(2, last=False, **arrays) == [0, 0, 1, 2, 3, 4]
    # The hook that looks is not called in them either. What the first one after them tells is the time of the last.
    pending = [False] * 3 + [True] * 2 + [False] * 3
    assert counted(2, last=False, **{**steps_at((2, 200.0), lasting=8), "pending": pending}) == [0, 0, 1, 1, 2, 3]


def test_steps_with_a_straggler_do_not_count_nor_at_first_those_with_a_suspect() -> None:
    arrays = steps_at((3, 300.0), lasting=12)
    straggling, suspicious = ([[0.02, 0.02, 0.02 / speed]] * 12 for speed in (0.5, 0.85))
    assert counted(3, **{**arrays, "busy_seconds": straggling}) < 4  # until its average has fallen
    seen = counted(3, last=False, **{**arrays, "busy_seconds": suspicious})
    assert seen[-1] - seen[7] == 4  # after the steps of patience it is the speed of this cluster


def test_a_throughput_that_moves_strikes_all_entries() -> None:
    arrays = steps_at((1, 100.0), (2, 200.0), (2, 150.0), lasting=100)
    arrays["view"] = [0] * 100 + [1] * 200
    arrays["step_seconds"][200:202] = arrays["step_seconds"][202:204]
    moves = shown(lambda t: kf.monitor.throughput_by_size(t, 6).moves, **arrays)
    assert (moves[199], moves[-1]) == (0, 1)
    assert (counted(1, last=False, **arrays)[199], counted(1, **arrays)) == (98, 0)
    struck = moves.index(1)
    assert counted(2, last=False, **arrays)[struck] == 1
    assert shown(lambda t: kf.monitor.throughput_by_size(t, 6).statistics.mean[2], **arrays)[-1] == pytest.approx(150)


def moves_of(*rates: float) -> list[float]:
    """How often a throughput has moved, after each step of one view with these throughputs."""
    arrays = steps_at((2, 100.0), lasting=2 + len(rates))
    arrays["step_seconds"][2:] = [[4 / rate] * 2 for rate in rates]
    arrays["busy_seconds"] = [[0.02] * 2] * len(arrays["size"])
    return shown(lambda t: kf.monitor.throughput_by_size(t, 6).moves, **arrays)[2:]


@pytest.mark.parametrize("after", [12, 30, 300])
@pytest.mark.parametrize(("other", "within"), [(150.0, 8), (120.0, 24), (80.0, 24), (60.0, 8)])
def test_a_move_is_seen_after_few_samples_however_early_in_a_view_it_comes(
    after: int, other: float, within: int
) -> None:
    moves = moves_of(*[100.0] * after, *[other] * 60)
    assert moves[after - 1] == 0
    assert moves[after - 1 + within] == 1
    assert moves[-1] == 1, "and is seen once"


def test_noise_and_single_disturbed_steps_are_no_move() -> None:
    rng = np.random.default_rng(3)
    noisy = 100 / (1 + 0.1 * np.clip(rng.standard_normal(3000), -3, 3))
    assert moves_of(*noisy)[-1] == 0
    disturbed = [100.0 if step % 40 else 20.0 for step in range(1, 1000)]
    assert moves_of(*disturbed)[-1] == 0
    within_margin = [100.0] * 200 + [104.0] * 400
    assert moves_of(*within_margin)[-1] == 0
