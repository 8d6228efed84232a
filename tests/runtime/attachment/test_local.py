"""The local attachment, its peers in threads of this process: the same op, memory and sockets as between processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure, UsageError
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.runtime.attachment.protocol import LateRanks
from kungfu.runtime.ipc.handshake import Credentials
from tests.runtime.attachment.test_local_processes import left_fold

pytestmark = pytest.mark.slow

JOB = f"test-local-{os.getpid()}"
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
ORDER = tf.Variable(0)
HALF = tf.Variable(0.5)
_views = count(1)

Act = Callable[[int, LocalAttachment], Any]


@contextmanager
def open_peers(size: int, *, deadline_s: float = 60.0) -> Iterator[Callable[[Act], list[Any]]]:
    """Opens ``size`` peers; what it gives runs a function of rank and attachment on all of them at once.

    The function's result, or the error it raised, is given for each rank.
    """
    view, peers = next(_views), [LocalAttachment(group=rank) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:

        def run(act: Act) -> list[Any]:
            running = [threads.submit(act, rank, peer) for rank, peer in enumerate(peers)]
            return [one.exception() or one.result() for one in running]

        assert run(lambda rank, peer: enter(peer, rank, size, view=view, deadline_s=deadline_s)) == [None] * size
        try:
            yield run
        finally:
            run(lambda rank, peer: peer.close())


def enter(peer: LocalAttachment, rank: int, size: int, *, view: int, deadline_s: float = 60.0) -> None:
    peer.open(Credentials(JOB, view, rank, size, b"s"), deadline_s=deadline_s, addresses=())


def reduce(peer: LocalAttachment, values: Sequence[Any], *, prescale: float = 1.0, tag: str = "gradients") -> list[Any]:
    return [total.numpy() for total in peer.all_reduce(values, prescale=prescale, order=ORDER, tag=tag)]


def draw(rng: np.random.Generator, dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Any bit pattern: subnormals, infinities and NaNs of every type come up."""
    kind = np.dtype(dtype.as_numpy_dtype)
    raw = rng.integers(0, 256, size=int(np.prod(shape)) * kind.itemsize, dtype=np.uint8)
    return raw.view(kind).reshape(shape)


def prescaled(value: np.ndarray, scale: float) -> np.ndarray:
    if scale == 1 or value.dtype.kind == "i":
        return value
    if scale == 0:
        return np.zeros_like(value)
    wide = np.float64 if value.dtype == np.float64 else np.float32
    return (value.astype(wide) * wide(scale)).astype(value.dtype)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind != "i":  # which of two NaNs an addition hands on is the compiler's choice
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        found, expected = (np.where(np.isnan(a), a.dtype.type(0), a) for a in (found, expected))
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


shapes = st.one_of(
    st.sampled_from([(), (0,), (0, 4), (1,), (3, 5), (2, 3, 4)]),
    st.tuples(st.integers(0, 300)),
    st.tuples(st.sampled_from([4096, 32767, 32768, 32769, 65536, 131073, 200_000])),  # around the ends of blocks
)
lists = st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=12)
scales = st.sampled_from([1.0, 0.0, 0.5, 1 / 3, 1e-6, 3e4])


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_sums_are_bit_for_bit_the_left_fold_in_rank_order(size: int) -> None:
    with open_peers(size) as run:

        @settings(max_examples=40, deadline=None)
        @given(kinds=lists, by_rank=st.lists(scales, min_size=size, max_size=size), seed=st.integers(0, 2**32))
        def check(kinds: list, by_rank: list[float], seed: int) -> None:
            rng = np.random.default_rng(seed)
            values = [[draw(rng, dtype, shape) for dtype, shape in kinds] for _ in range(size)]
            sums = run(lambda rank, peer: reduce(peer, values[rank], prescale=by_rank[rank]))
            for i in range(len(kinds)):
                last = i == len(kinds) - 1
                inputs = [
                    values[rank][i] if last else prescaled(values[rank][i], by_rank[rank]) for rank in range(size)
                ]
                for rank in range(size):
                    assert_same_bits(sums[rank][i], left_fold(inputs))

        check()


def test_many_small_tensors_and_one_of_several_blocks_travel_together() -> None:
    small, large = [np.full((i % 7,), i, np.float32) for i in range(500)], np.arange(1_000_000, dtype=np.float64)
    with open_peers(2) as run:
        for sums in run(lambda rank, peer: reduce(peer, [*small, large])):
            assert all(np.array_equal(total, 2 * value) for total, value in zip(sums, [*small, large], strict=True))


def test_a_closed_attachment_and_one_of_size_one_only_prescale() -> None:
    peer, values = LocalAttachment(group=77), [np.array([2.0, np.nan], np.float16), np.array([3.0])]
    for _ in range(2):
        assert_same_bits(reduce(peer, values)[0], values[0])
        assert_same_bits(reduce(peer, values, prescale=0.5)[0], np.array([1.0, np.nan], np.float16))
        assert_same_bits(reduce(peer, values, prescale=0.0)[0], np.zeros(2, np.float16))
        assert_same_bits(reduce(peer, values, prescale=0.5)[1], values[1])
        enter(peer, 0, 1, view=next(_views))
    peer.close()
    peer.close()
    peer.wait_at_most(1.0)
    assert peer.late() is None


def test_one_that_was_never_open_is_closed_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kungfu.native.builder._loaded", [])
    monkeypatch.setenv("KUNGFU_NATIVE_LIBRARY", "there is none")
    LocalAttachment(group=77).close()


def test_what_was_reduced_stays_as_it_was() -> None:
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def step(peer: LocalAttachment) -> list[Any]:
        return peer.all_reduce([variable, variable + 1.0], prescale=2.0, order=ORDER, tag="kept")

    assert [total.numpy().tolist() for total in step(LocalAttachment(group=78))] == [[2.0, 4.0], [2.0, 3.0]]
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_shapes_are_known_while_tracing_and_may_be_dynamic() -> None:
    peer = LocalAttachment(group=79)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def step(value: tf.Tensor) -> tf.Tensor:
        total, _ = peer.all_reduce([value, 1.0], prescale=1.0, order=ORDER, tag="dynamic")
        assert total.shape.as_list() == [None, 3]
        return total

    assert step(tf.ones([2, 3])).shape == (2, 3)
    assert step(tf.ones([5, 3])).shape == (5, 3)


@pytest.mark.parametrize(
    ("values", "message"), [([], "at least one tensor"), ([[True], [1j]], "bool, complex128; allowed")]
)
def test_what_cannot_be_reduced_is_refused(values: list, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reduce(LocalAttachment(), values)


@pytest.mark.parametrize("other", [("second", [1.0, 2.0]), ("first", [1.0])])
def test_peers_that_run_different_messages_are_told_which(other: tuple[str, list[float]]) -> None:
    calls = [("first", [1.0, 2.0]), other]
    said = [f'rank={rank} runs "{tag}" of {len(values)} tensors (float32*' for rank, (tag, values) in enumerate(calls)]
    with open_peers(2) as run:
        for failure in run(lambda rank, peer: reduce(peer, calls[rank][1], tag=calls[rank][0])):
            assert isinstance(failure, tf.errors.InternalError)
            assert "kungfu: peers differ: " + said[0] in failure.message
            assert ", " + said[1] in failure.message
        for meant in run(lambda rank, peer: peer.failure_of(None)):
            assert isinstance(meant, InternalError)


def test_equal_totals_in_another_order_are_a_difference_too() -> None:
    values = [np.zeros(2, np.float32), np.zeros(3, np.float32)]
    with open_peers(2) as run:
        for failure in run(lambda rank, peer: reduce(peer, values[:: 1 - 2 * rank])):
            assert isinstance(failure, tf.errors.InternalError)


def test_the_deadline_names_the_ranks_that_did_not_come_and_breaks_the_group_for_all() -> None:
    for deadline_s in (0.3, 1.2, 4.8, 19.2):
        with open_peers(4) as run:
            run(lambda rank, peer, deadline_s=deadline_s: peer.wait_at_most(deadline_s))
            failures = run(lambda rank, peer: reduce(peer, [1.0]) if rank % 2 == 0 else None)
            # On a busy machine one of those two may come too late for the other one: then with more time.
            if any(f"rank={rank}" in one.message for rank in (0, 2) for one in (failures[0], failures[2])):
                continue
            assert_named_and_broken(run, failures, deadline_s=deadline_s)
            return
    raise AssertionError("two peers never came together")


def assert_named_and_broken(run: Callable[[Act], list[Any]], failures: list[Any], *, deadline_s: float) -> None:
    """Ranks 0 and 2 have waited for the others until the deadline."""
    expected = f"kungfu: waited {deadline_s:.1f} s in gradients for rank=1,rank=3"
    assert all(isinstance(failures[rank], tf.errors.DeadlineExceededError) for rank in (0, 2))
    for meant in (run(lambda rank, peer: peer.failure_of(None))[rank] for rank in (0, 2)):
        assert isinstance(meant, DeadlineExceeded)
        assert (meant.waiting_for, meant.view is not None) == ((1, 3), True)
        assert deadline_s <= meant.waited_s < deadline_s + 60.0
    # From here on a wait would last for as long as a test may take: who comes later waits for nobody.
    run(lambda rank, peer: peer.wait_at_most(180.0))
    started = time.monotonic()
    later = run(lambda rank, peer: reduce(peer, [1.0], tag="later"))
    assert time.monotonic() - started < 60.0
    assert all(expected in failure.message for failure in [failures[0], failures[2], *later])


def test_a_deadline_that_is_set_while_somebody_waits_holds_for_that_wait() -> None:
    with open_peers(2, deadline_s=60.0) as run:
        failure = while_waiting_alone(run, lambda peer: peer.wait_at_most(0.2))
        assert "kungfu: waited 0.2 s in gradients for rank=1" in failure.message


def while_waiting_alone(run: Callable[[Act], list[Any]], act: Callable[[LocalAttachment], None]) -> Any:
    """What comes of an all-reduce of rank 0 to which rank 1 does not come; ``act`` is done while rank 0 waits."""

    def wait_alone(rank: int, peer: LocalAttachment) -> Any:
        if rank == 1:
            return None
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(reduce, peer, [1.0])
            assert not wait([waiting], timeout=0.1).done
            act(peer)
            return waiting.result(timeout=180.0)

    return run(wait_alone)[0]


def test_a_wait_that_lasts_is_told_once_by_the_lowest_rank_that_waits_and_goes_on() -> None:
    # On a busy machine rank 2 may come after rank 1 has told of it, or all of them after the deadline.
    for deadline_s in (8.0, 60.0):
        reported, again, sums, later = reports_of_a_wait(deadline_s)
        if reported.ranks == (0, 3) and sums == [4.0] * 4:
            break
    assert sums == [4.0] * 4
    assert (reported.ranks, reported.tag, again) == ((0, 3), "gradients", None)
    assert 2.0 <= reported.waited_s < deadline_s
    assert later == [None] * 4


def reports_of_a_wait(deadline_s: float) -> tuple[LateRanks, LateRanks | None, list[Any], list[LateRanks | None]]:
    """The reports of rank 1 about the wait of ranks 1 and 2, one and another; the sums; and later reports of all."""
    with open_peers(4, deadline_s=deadline_s) as run:  # told after a quarter of the deadline
        came = threading.Event()

        def wait_for_two(rank: int, peer: LocalAttachment) -> Any:
            if rank in (0, 3):
                assert came.wait(180.0)
            return reduce(peer, [1.0])[0]

        looking = LocalAttachment(group=1)
        with ThreadPoolExecutor(1) as thread:
            sums = thread.submit(run, wait_for_two)
            while (late := looking.late()) is None:
                came.wait(0.05)
            came.set()
            again = looking.late()
        return late, again, sums.result(), run(lambda rank, peer: peer.late())


def test_a_peer_that_closes_is_named_to_those_that_wait_for_it() -> None:
    with open_peers(3) as run:
        failures = run(lambda rank, peer: peer.close() if rank == 1 else reduce(peer, [1.0]))
        for rank in (0, 2):
            assert isinstance(failures[rank], tf.errors.UnavailableError)
            assert "kungfu: peer rank=1 left during gradients" in failures[rank].message
        lost = run(lambda rank, peer: peer.failure_of(None))
        for rank in (0, 2):
            assert isinstance(lost[rank], PeerFailure)
            assert (lost[rank].ranks, str(lost[rank])) == ((1,), "peer rank=1 left during gradients")
        assert lost[1] is None, "it took no part in that message"


def test_closing_ends_an_all_reduce_of_this_peer() -> None:
    with open_peers(2) as run:
        failure = while_waiting_alone(run, LocalAttachment.close)
        assert isinstance(failure, tf.errors.CancelledError)
        assert "kungfu: the group was closed during gradients" in failure.message
        meant = run(lambda rank, peer: peer.failure_of(None))[0]
        assert isinstance(meant, PeerFailure)
        assert meant.ranks == (), "nobody else is at fault"


def test_a_new_view_and_one_of_a_single_peer_know_nothing_of_the_failure_before() -> None:
    with open_peers(2) as run:
        run(lambda rank, peer: peer.close() if rank else reduce(peer, [1.0]))
        view = next(_views)

        def reopen(rank: int, peer: LocalAttachment) -> Any:
            before = peer.failure_of(None)
            enter(peer, rank, 2, view=view)
            return before, peer.failure_of(None)

        found = run(reopen)
        assert [after for _, after in found] == [None, None]
        assert isinstance(found[0][0], PeerFailure)
        run(lambda rank, peer: peer.close() if rank else reduce(peer, [1.0]))

        def shrink(rank: int, peer: LocalAttachment) -> Any:
            enter(peer, 0, 1, view=view)
            return peer.failure_of(None)

        assert run(shrink) == [None, None]


def test_a_new_view_works_under_the_same_trace_after_an_error() -> None:
    traced = {rank: tf.function(reducer(rank)) for rank in range(2)}
    with open_peers(2) as run:
        assert [float(total) for total in run(lambda rank, peer: traced[rank](2.0))] == [4.0, 4.0]
        run(lambda rank, peer: peer.close() if rank else None)
        assert isinstance(run(lambda rank, peer: None if rank else traced[0](2.0))[0], tf.errors.UnavailableError)
    assert float(traced[0](2.0)) == 2.0
    with open_peers(2) as run:
        assert [float(total) for total in run(lambda rank, peer: traced[rank](2.0))] == [4.0, 4.0]
    assert all(function.experimental_get_tracing_count() == 1 for function in traced.values())


def reducer(rank: int) -> Callable[[tf.Tensor], tf.Tensor]:
    def step(value: tf.Tensor) -> tf.Tensor:
        return LocalAttachment(group=rank).all_reduce([value], prescale=1.0, order=ORDER, tag="gradients")[0]

    return step


def late_ones() -> tf.Tensor:
    """Ones that take long to compute, so that whatever is not ordered behind them runs first."""
    halves = tf.fill([1500, 1500], HALF)  # of a variable: a constant would be computed before the graph runs
    return tf.linalg.matmul(halves, halves)[:2, 0] * 4.0 / 1500.0


def flat(peer: LocalAttachment) -> tf.Tensor:
    peer.all_reduce([late_ones()], prescale=1.0, order=ORDER, tag="first")
    return peer.all_reduce([[1.0]], prescale=1.0, order=ORDER, tag="second")[0]


def gated(peer: LocalAttachment) -> tf.Tensor:
    open_gate = tf.equal(ORDER % 2, 0)
    tf.cond(open_gate, lambda: peer.all_reduce([late_ones()], prescale=1.0, order=ORDER, tag="first")[0], late_ones)
    second = tf.constant([1.0])
    return tf.cond(
        open_gate, lambda: peer.all_reduce([second], prescale=1.0, order=ORDER, tag="second")[0], lambda: second
    )


@pytest.mark.parametrize("step", [flat, gated])
def test_all_reduces_that_share_an_order_run_in_program_order(step: Callable[[LocalAttachment], tf.Tensor]) -> None:
    """One peer runs the graph, the other says which message it expects when; the first one's value is late."""
    traced = tf.function(step)

    def act(rank: int, peer: LocalAttachment) -> Any:
        if rank == 0:
            return traced(peer).numpy().tolist()
        return [reduce(peer, [[1.0, 1.0]], tag="first")[0].tolist(), reduce(peer, [[1.0]], tag="second")[0].tolist()]

    with open_peers(2) as run:
        for _ in range(3):
            assert run(act) == [[2.0], [[2.0, 2.0], [2.0]]]


def test_nothing_is_left_of_a_closed_group() -> None:
    def held() -> tuple[int, int]:
        mappings = Path("/proc/self/maps").read_text().count("memfd:kungfu")
        return mappings, len(os.listdir("/proc/self/fd"))

    with open_peers(2) as run:
        run(lambda rank, peer: reduce(peer, [1.0]))
    mappings, descriptors = held()
    assert mappings == 0
    with open_peers(3) as run:
        run(lambda rank, peer: reduce(peer, [1.0]))
        assert held()[0] == 3
    assert held() == (0, descriptors)
    assert JOB not in Path("/proc/net/unix").read_text()
    assert [name for name in os.listdir("/dev/shm") if "kungfu" in name] == []
