"""Squared norms beside an all-reduce: the same bits by every way to take them, and where they travel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu import native
from kungfu.runtime.attachment.choose import SoloAttachment
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.runtime.attachment.norms import NormsWanted, norm_placeholder, norm_squared
from kungfu.signal.operation.numpy_kernels import sum_of_squares
from tests.runtime.attachment.test_local import DTYPES, ORDER, open_peers

pytestmark = pytest.mark.slow

# Around the lanes, the blocks of the sums, and the blocks of the message.
COUNTS = (0, 1, 2, 15, 16, 17, 31, 33, 511, 512, 513, 1025, 65535, 65536, 65537, 300_001)
BOTH = NormsWanted(values=True, sums=True)


BOTH_WAYS = pytest.mark.parametrize("avx2", [True, False], ids=["AVX2", "no AVX2"])


@contextmanager
def squared(*, avx2: bool) -> Iterator[None]:
    """Floats are squared with AVX2, or without; where the processor has none, without."""
    let = native.load().functions.kungfu_let_squares_use_avx2
    let(int(avx2))
    try:
        yield
    finally:
        let(1)


def drawn(seed: int, count: int, dtype: tf.DType = tf.float32) -> np.ndarray:
    """Numbers of very different magnitudes, down to subnormal ones."""
    rng = np.random.default_rng([seed, count])
    lowest = -44.0 if dtype in (tf.float32, tf.bfloat16, tf.float64) else -4.0
    numbers = rng.standard_normal(count) * 10.0 ** rng.uniform(lowest, 3.0, count)
    return numbers.astype(dtype.as_numpy_dtype)


def total(tensors: Sequence[np.ndarray]) -> float:
    """The oracle of a norm: the sums of the tensors in their order."""
    return float(sum(map(sum_of_squares, tensors), np.float64(0.0)))


def exact(values: np.ndarray) -> float:
    return math.fsum((values.astype(np.float32).astype(np.float64) ** 2).tolist())


def with_norms(
    peer: Any, values: Sequence[Any], *, wanted: NormsWanted = BOTH, prescale: float = 1.0
) -> tuple[list[np.ndarray], float, float]:
    sums, own, together = peer.all_reduce_with_norms(
        values, wanted=wanted, prescale=tf.constant(prescale, tf.float64), order=ORDER, tag="gradients"
    )
    return [one.numpy() for one in sums], float(own), float(together)


def same(one: float, other: float) -> bool:
    """To the last bit; NaN is NaN."""
    return one.hex() == other.hex()


@BOTH_WAYS
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: one.name)
def test_a_pass_of_its_own_has_the_bits_of_the_oracle(avx2: bool, dtype: tf.DType) -> None:
    for count in COUNTS:
        values = drawn(1, count, dtype)
        with squared(avx2=avx2):
            assert same(float(norm_squared([tf.constant(values)])), total([values])), count


def test_the_oracle_is_the_exact_sum_but_for_its_last_digits() -> None:
    for count in COUNTS:
        values = drawn(2, count)
        assert float(sum_of_squares(values)) == pytest.approx(exact(values), rel=1e-15, abs=0)
    ones = np.full(3_000_000, 1 / 3, np.float32)
    assert float(sum_of_squares(ones)) == pytest.approx(exact(ones), rel=1e-15, abs=0)


@BOTH_WAYS
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: one.name)
@pytest.mark.parametrize("prescale", [1.0, 0.5])
def test_norms_taken_while_copying_have_the_bits_of_the_oracle(avx2: bool, dtype: tf.DType, prescale: float) -> None:
    """Through the message of two peers, whose chunks and portions cut the tensors anywhere."""
    for count in (0, 1, 17, 32769, 131_073, 300_001):
        given = [[drawn(rank, count, dtype), drawn(rank + 5, 37, dtype), np.ones(3, np.float32)] for rank in range(2)]
        with squared(avx2=avx2), open_peers(2) as run:
            (sums, own, together), (_, other, again) = run(
                lambda rank, peer, given=given: with_norms(peer, given[rank], prescale=prescale)
            )
        assert same(own, total(given[0][:-1]))
        assert same(other, total(given[1][:-1])), "of what is handed in, before it is scaled"
        assert same(together, total(sums[:-1]))
        assert same(together, again)


@pytest.mark.parametrize("last", DTYPES, ids=lambda one: one.name)
def test_tensors_of_all_types_count_in_the_order_of_the_call(last: tf.DType) -> None:
    values = [
        *(drawn(3, 1000 + place, dtype) for place, dtype in enumerate(DTYPES * 2)),
        np.ones(5, last.as_numpy_dtype),
    ]
    with open_peers(3) as run:
        for sums, own, together in run(lambda rank, peer: with_norms(peer, values, prescale=0.25)):
            assert same(own, total(values[:-1]))
            assert same(together, total(sums[:-1]))


def test_every_attachment_gives_the_same_norms_alone() -> None:
    values = [drawn(4, 70_000), drawn(5, 33, tf.float16), np.ones(2, np.float32)]
    for prescale in (1.0, 1 / 3):
        found = [with_norms(peer, values, prescale=prescale) for peer in (SoloAttachment(), LocalAttachment(group=81))]
        for sums, own, together in found:
            assert same(own, total(values[:-1]))
            assert same(together, total(sums[:-1]))


@pytest.mark.parametrize("peer", [SoloAttachment(), LocalAttachment(group=82)], ids=["solo", "local"])
def test_a_norm_that_is_not_wanted_is_minus_infinity_and_may_be_decided_in_the_graph(peer: Any) -> None:
    @tf.function
    def step(values: bool, sums: bool) -> Any:
        wanted = NormsWanted(values=values, sums=sums)
        return peer.all_reduce_with_norms(
            [[3.0, 4.0], [1.0]], wanted=wanted, prescale=tf.constant(1.0, tf.float64), order=ORDER, tag="norms"
        )[1:]

    for values in (False, True):
        for sums in (False, True):
            own, together = step(tf.constant(values), tf.constant(sums))
            assert (float(own), float(together)) == (25.0 if values else -math.inf, 25.0 if sums else -math.inf)
            assert [float(one) for one in step(values, sums)] == [float(own), float(together)]


def test_the_factor_holds_for_both_norms() -> None:
    values, wanted = [[3.0, 4.0], [1.0]], NormsWanted(values=True, sums=True, factor=0.25)
    for peer in (SoloAttachment(), LocalAttachment(group=83)):
        assert with_norms(peer, values, wanted=wanted, prescale=2.0)[1:] == (6.25, 25.0)


def test_the_norm_replaces_its_placeholder_and_is_added_up_like_any_number() -> None:
    def act(rank: int, peer: LocalAttachment) -> Any:
        rider = tf.stack([1.0, norm_placeholder(), float("nan"), norm_placeholder()])
        return with_norms(peer, [[3.0 + rank], np.ones(100_000), rider])

    with open_peers(3) as run:
        for (*_, riders), *_ in run(act):
            assert riders.tolist() == pytest.approx([3.0, 300_050.0, math.nan, 300_050.0], nan_ok=True)


@pytest.mark.parametrize("peer", [SoloAttachment(), LocalAttachment(group=84)], ids=["solo", "local"])
def test_alone_the_norm_takes_its_place_too_and_the_value_that_was_given_stays(peer: Any) -> None:
    rider = tf.stack([norm_placeholder(), 2.0])
    before = rider.numpy().tobytes()
    for prescale in (1.0, 0.5):
        assert with_norms(peer, [[3.0, 4.0], rider], prescale=prescale)[0][1].tolist() == [25.0, 2.0]
    assert rider.numpy().tobytes() == before
    kept = with_norms(peer, [[3.0], rider], wanted=NormsWanted(values=False, sums=True))[0][1]
    assert kept.tobytes() == before, "nothing is filled in where the norm is not wanted"


def test_a_peer_without_samples_has_no_norm_whatever_its_values_are() -> None:
    values = [np.array([3.0, 4.0], np.float32), np.array([np.inf, np.nan], np.float32)]

    def act(rank: int, peer: LocalAttachment) -> Any:
        rider = tf.stack([norm_placeholder() if rank == 0 else tf.constant(0.0)])
        return with_norms(peer, [values[rank], rider], prescale=1.0 - rank)

    with open_peers(2) as run:
        (sums, own, together), (_, other, again) = run(act)
    assert (own, together, again) == (25.0, 25.0, 25.0)
    assert math.isnan(other)
    assert [one.tolist() for one in sums] == [[3.0, 4.0], [25.0]]
    for peer in (SoloAttachment(), LocalAttachment(group=85)):
        assert math.isnan(with_norms(peer, [values[0], [norm_placeholder()]], prescale=0.0)[1])
        assert math.isnan(with_norms(peer, [values[0], [norm_placeholder()]], prescale=0.0)[0][1][0])


@BOTH_WAYS
def test_what_is_not_finite_shows_in_the_norm(avx2: bool) -> None:
    for place in (0, 15, 16, 40_000, 99_999):
        values = np.ones(100_000, np.float32)
        for wrong, expected in ((np.inf, math.inf), (-np.inf, math.inf), (np.nan, math.nan)):
            values[place] = wrong
            with squared(avx2=avx2):
                found = float(norm_squared([tf.constant(values)]))
                _, own, together = with_norms(LocalAttachment(group=86), [values, [0.0]], prescale=0.5)
            assert str(found) == str(own) == str(together) == str(expected)


def test_the_smallest_numbers_count_in_a_graph_too_where_tensorflow_flushes_them() -> None:
    smallest = np.full(1000, 1e-45, np.float32)
    expected = total([smallest])
    assert expected > 0
    with open_peers(2) as run:
        traced = {rank: tf.function(partial(norms_of, LocalAttachment(group=rank), smallest)) for rank in range(2)}
        for own, together in run(lambda rank, peer: [float(one) for one in traced[rank]()]):
            assert same(own, expected)
            assert same(together, 4 * expected)
    assert same(float(tf.function(lambda: norm_squared([tf.constant(smallest)]))()), expected)


def norms_of(peer: LocalAttachment, values: np.ndarray) -> tuple[Any, Any]:
    one = tf.constant(1.0, tf.float64)
    return peer.all_reduce_with_norms([values, [0.0]], wanted=BOTH, prescale=one, order=ORDER, tag="smallest")[1:]


def test_a_message_that_fails_gives_no_norms() -> None:
    with open_peers(2) as run:
        failures = run(lambda rank, peer: with_norms(peer, [np.ones(4 + rank), [0.0]]))
        assert all(isinstance(failure, tf.errors.InternalError) for failure in failures)
    with open_peers(2) as run:
        for _, own, together in run(lambda rank, peer: with_norms(peer, [np.ones(4), [0.0]])):
            assert (own, together) == (4.0, 16.0), "nothing is left of the sums of the message that failed"
