"""Algorithm 1 by hand, on measured curves where they are there, and its two readings for fewer workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.schedule import Curve, hybrid_batch, hybrid_curve, read_throughputs
from kungfu.schedule.curves import best_gpus, rate_at
from tests.schedule.instances import thorough
from tests.schedule.published import DATA, needs_data

OPTIMUM = {64: 32, 128: 64}
FAMILY = {64: Curve((1, 2, 4), (4.0, 6.0, 5.0)), 128: Curve((1, 2, 4), (2.0, 4.0, 6.0))}


def test_strong_scaling_comes_first_and_doubling_when_it_no_longer_pays() -> None:
    assert hybrid_batch(64, workers=8, target=16, optimum=OPTIMUM.__getitem__) == 64
    assert hybrid_batch(64, workers=8, target=64, optimum=OPTIMUM.__getitem__) == 128


def test_if_no_doubling_is_enough_the_batch_grows_with_the_workers() -> None:
    assert hybrid_batch(64, workers=8, target=24, optimum=lambda batch: 1) == 192


def test_scaling_in_shrinks_the_batch_or_keeps_it_as_asked() -> None:
    assert hybrid_batch(64, workers=8, target=2, optimum=OPTIMUM.__getitem__) == 16
    assert hybrid_batch(64, workers=8, target=2, optimum=OPTIMUM.__getitem__, scale_in="keep") == 64


@thorough
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
