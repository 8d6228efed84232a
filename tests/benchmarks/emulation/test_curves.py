"""Curves of throughput by peers: measured ones read from a table, made concave, and where a rule stops on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.emulation.curves import Curve, amdahl, best_size, between, filled, majorant, measured_t4

HEADER = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"


def published(folder: Path, *rows: str) -> Path:
    """A folder as the published one, with these rows."""
    (folder / "cifar10-scalability.csv").write_text(HEADER + "\n".join(rows) + "\n")
    return folder


def read(folder: Path, *, batch: float, most: int) -> Curve:
    return measured_t4(folder, "cifar10", local_batch=lambda gpus: batch, most=most)


def test_a_gap_is_filled_on_a_straight_line() -> None:
    assert filled({2: 20.0, 4: 30.0, 5: 31.0}) == {2: 20.0, 3: 25.0, 4: 30.0, 5: 31.0}


def test_between_two_entries_lies_a_straight_line() -> None:
    assert between({10.0: 1.0, 20.0: 3.0}, 15.0) == 2.0
    assert between({10.0: 1.0, 20.0: 3.0}, 20.0) == 3.0


@pytest.mark.parametrize(
    ("table", "concave"),
    [
        ({1: 5.0}, {1: 5.0}),
        ({1: 10.0, 2: 19.0, 3: 27.0}, {1: 10.0, 2: 19.0, 3: 27.0}),
        ({1: 10.0, 2: 5.0, 3: 30.0, 4: 31.0}, {1: 10.0, 2: 20.0, 3: 30.0, 4: 31.0}),
        # A dip behind the largest value is lifted to the line that leads to the end.
        ({1: 10.0, 2: 40.0, 3: 10.0, 4: 20.0}, {1: 10.0, 2: 40.0, 3: 30.0, 4: 20.0}),
    ],
)
def test_the_majorant_lifts_dips_and_nothing_else(table: dict[int, float], concave: dict[int, float]) -> None:
    assert majorant(table) == concave


def test_a_measured_curve_takes_the_fewest_nodes_and_interpolates_batches_and_sizes(tmp_path: Path) -> None:
    rows = ("8,8,10,9.0,0", "6,8,10,1.0,0", "6,8,30,2.0,0", "6,10,10,5.0,0", "12,16,10,2.0,0", "12,16,30,2.0,0")
    curve = read(published(tmp_path, *rows), batch=20.0, most=4)
    # 8 GPUs on 6 nodes: 20 samples lie between 1 s and 2 s. 16 GPUs: 2 s. 10 GPUs are no whole number of peers.
    assert curve.throughput == {2: 8 * 20 / 1.5, 3: pytest.approx((8 * 20 / 1.5 + 160) / 2), 4: 16 * 20 / 2.0}


def test_a_batch_or_a_size_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    folder = published(tmp_path, "6,8,10,1.0,0", "6,8,30,2.0,0")
    with pytest.raises(ValueError, match="other batches than 40"):
        read(folder, batch=40.0, most=2)
    with pytest.raises(ValueError, match="2 and 3 peers"):
        read(folder, batch=20.0, most=3)


@pytest.mark.parametrize("table", [{}, {1: 1.0, 3: 2.0}, {0: 1.0}, {1: float("nan")}, {1: -1.0}])
def test_a_curve_with_a_hole_or_without_a_speed_is_refused(table: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="takes"):
        Curve("bad", table)


def test_a_static_twin_takes_its_samples_over_its_throughput() -> None:
    curve = Curve("two", {1: 100.0, 2: 160.0})
    assert curve.seconds(2, samples=800) == 5.0
    assert curve.faster(20).seconds(2, samples=800) == 0.25
    assert curve.step_s(1, batch=50) == 0.5


def test_the_best_size_is_the_last_one_before_the_efficiency_fails() -> None:
    # From 2 to 3 peers 40 / (180 / 2) = 0.44 of a peer is added, from 3 to 4 20 / (220 / 3) = 0.27.
    curve = Curve("flattening", {1: 100.0, 2: 180.0, 3: 220.0, 4: 240.0, 5: 400.0})
    assert [best_size(curve, efficiency=one) for one in (0.2, 0.3, 0.5, 0.9)] == [5, 3, 2, 1]
    assert [best_size(curve, efficiency=one, unit=2) for one in (0.5, 0.7)] == [5, 1]
    assert best_size(amdahl(100.0, serial=0.0, most=6), efficiency=0.99) == 6


def test_from_a_start_from_which_growth_fails_the_best_size_is_below() -> None:
    curve = Curve("dipped", {1: 100.0, 2: 180.0, 3: 200.0, 4: 190.0, 5: 280.0})
    # The third peer adds 20 / (180 / 2) = 0.22 of a peer, so 3 peers return to 2; the fifth adds 90 / (190 / 4) = 1.9.
    assert [best_size(curve, efficiency=0.3, start=one) for one in (1, 2, 3, 4, 5)] == [2, 2, 2, 5, 5]
    assert best_size(curve, efficiency=-1.0, start=3) == 5
