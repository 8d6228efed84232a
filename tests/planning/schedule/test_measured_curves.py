"""Throughput tables, and curves whose batch follows the GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.schedule import Curve, hybrid_batch, hybrid_curve, read_throughputs
from kungfu_planning.schedule.curve import best_gpus, rate_at
from tests.planning.schedule.published import DATA, needs_data

GOOD = "global_batch_size,1,2,4\n64,1.0,1.8,\n128,,0.9,1.5\n\n"


def _folder(tmp_path: Path, text: str) -> Path:
    (tmp_path / "net.csv").write_text(text, encoding="utf-8")
    return tmp_path


def test_empty_ends_of_a_row_were_not_measured(tmp_path: Path) -> None:
    measured = read_throughputs(_folder(tmp_path, GOOD))
    assert measured.curve("net", batch=64) == Curve((1, 2), (1.0, 1.8))
    assert measured.curve("net", batch=128) == Curve((2, 4), (0.9, 1.5))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("global_batch_size,1,2,4\n64,1.0,,2.0\n", r"net\.csv:2: column 2: a hole"),
        ("global_batch_size,1,2\n64,1.0,0\n", r"net\.csv:2: the rate on 2 GPUs is 0\.0"),
        ("global_batch_size,1,2\n64,1.0,fast\n", r"net\.csv:2: column 2: expected a number, got 'fast'"),
        ("global_batch_size,1,2\n64,1.0,2.0,3.0\n", r"net\.csv:2: expected 1 to 2 rates, got 3"),
        ("global_batch_size,1,2\nbig,1.0,2.0\n", r"net\.csv:2: column global_batch_size: expected a number"),
        ("global_batch_size,1\n64,1.0\n64,2.0\n", r"net\.csv:3: expected a new batch, got 64 again"),
        ("batch,1,2\n64,1.0,2.0\n", r"net\.csv:1: expected a header"),
        ("", r"net\.csv:1: expected a header"),
        ("global_batch_size,1,inf\n64,1.0,2.0\n", r"net\.csv:1: expected a whole number of at least 1, got 'inf'"),
        ("global_batch_size,1,2.5\n64,1.0,2.0\n", r"net\.csv:1: expected a whole number of at least 1, got '2\.5'"),
        ("\nglobal_batch_size,1,2\n\n6.4,1.0,2.0\n", r"net\.csv:4: column global_batch_size: expected a whole number"),
        ('global_batch_size,1\n64,"1', r"net\.csv: expected a readable CSV file in UTF-8"),
    ],
)
def test_a_table_with_a_fault_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_throughputs(_folder(tmp_path, text))


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"net\.csv: expected a readable CSV file in UTF-8"):
        read_throughputs(tmp_path)
    (tmp_path / "net.csv").unlink()
    (tmp_path / "net.csv").mkdir()
    with pytest.raises(UsageError, match=r"net\.csv: expected a readable CSV file in UTF-8"):
        read_throughputs(tmp_path)


def test_unknown_models_batches_and_folders_are_named(tmp_path: Path) -> None:
    measured = read_throughputs(_folder(tmp_path, GOOD))
    with pytest.raises(UsageError, match=r"no throughput of model 'other' is known; there are \['net'\]"):
        measured.family("other")
    with pytest.raises(UsageError, match="holds no throughput tables"):
        read_throughputs(tmp_path / "nowhere")


OPTIMUM = {64: 32, 128: 64}
FAMILY = {64: Curve((1, 2, 4), (4.0, 6.0, 5.0)), 128: Curve((1, 2, 4), (2.0, 4.0, 6.0))}


def test_if_no_doubling_is_enough_the_batch_grows_with_the_workers() -> None:
    assert hybrid_batch(64, workers=8, target=24, optimum=lambda batch: 1) == 192


def test_scaling_in_shrinks_the_batch_or_keeps_it_as_asked() -> None:
    assert hybrid_batch(64, workers=8, target=2, optimum=OPTIMUM.__getitem__) == 16
    assert hybrid_batch(64, workers=8, target=2, optimum=OPTIMUM.__getitem__, scale_in="keep") == 64


@given(batch=st.integers(1, 512), workers=st.integers(1, 16), factor=st.integers(1, 16), peak=st.integers(1, 64))
def test_the_batch_never_grows_by_more_than_the_workers_nor_shrinks(batch, workers, factor, peak) -> None:
    target = workers * factor
    after = hybrid_batch(batch, workers=workers, target=target, optimum=lambda size: peak * size // 64)
    assert batch <= after <= batch * factor
    assert after == batch * factor or (after // batch & (after // batch - 1)) == 0


def test_samples_a_second_follow_the_batch() -> None:
    # Best sizes: 2 at batch 64, 4 at batch 128. On 3 and 4 GPUs the batch must double.
    assert hybrid_curve(FAMILY, batch=64, workers=1).rates == (64 * 4.0, 64 * 6.0, 128 * 5.0, 128 * 6.0)
    assert hybrid_curve(FAMILY, batch=128, workers=4).rates == (128 * 2.0, 128 * 4.0, 128 * 5.0, 128 * 6.0)


def test_a_batch_that_nobody_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="no curve was measured at batch 32"):
        hybrid_curve(FAMILY, batch=32, workers=1)
    with pytest.raises(UsageError, match="must all be at least 1"):
        hybrid_batch(0, workers=1, target=1, optimum=OPTIMUM.__getitem__)


@needs_data
def test_the_measured_resnet_keeps_64_samples_up_to_32_gpus_and_doubles_at_64() -> None:
    family = read_throughputs(DATA / "throughputs_A100").family("resnet50")
    assert {batch: best_gpus(family[batch]) for batch in (64, 128)} == OPTIMUM
    curve = hybrid_curve(family, batch=64, workers=8)
    assert rate_at(curve, gpus=32) == pytest.approx(64 * rate_at(family[64], gpus=32))
    assert rate_at(curve, gpus=64) == pytest.approx(128 * rate_at(family[128], gpus=64))
