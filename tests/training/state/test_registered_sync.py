"""Registered values of several peers in one process, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import StandaloneMembership
from kungfu.training.loop.barrier import _restore_registered
from kungfu.training.loop.between_steps import complete_state
from kungfu.training.state.registered_sync import PeerGroup, PendingSync, sync_registered
from kungfu.training.state.registry import Registry
from tests.training.linear import linear_run
from tests.training.peers import on_peers, total_of


class Program:
    """What one peer's program holds and has registered."""

    def __init__(self, *, counter: int, mean: Sequence[float], own: str, teacher: float) -> None:
        self.held: dict[str, Any] = {"counter": counter, "log": {}, "mean": np.array(mean), "own": own}
        self.teacher, self.registry = tf.Variable([teacher, 0.5]), Registry()
        for name, kind in (("counter", "shared"), ("log", "shared"), ("mean", "averaged"), ("own", "local")):
            self.registry.register(name, *self.functions(name), kind=kind, room_bytes=50)
        self.registry.register_variable("teacher", self.teacher, kind="shared")

    def functions(self, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        return lambda: self.held[name], lambda value: self.held.update({name: value})


class Totals:
    """What gives each rank the sums over all of them; whoever waits for a peer that failed fails too."""

    def __init__(self, size: int) -> None:
        self._size, self._failed, self._calls = size, False, [0] * size
        self._given: dict[tuple[int, int], Sequence[Any]] = {}
        self._changed = threading.Condition()

    def of(self, rank: int, tensors: Sequence[Any]) -> list[Any]:
        call = self._calls[rank]
        wanted = [(call, one) for one in range(self._size)]
        with self._changed:
            self._calls[rank], self._given[call, rank] = call + 1, tensors
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failed or self._given.keys() >= {*wanted}, timeout=180)
            # A peer that failed after this call has given its part.
            if not self._given.keys() >= {*wanted}:
                raise ConnectionError("another peer failed")
        return [tf.add_n(list(column)) for column in zip(*(self._given[one] for one in wanted), strict=True)]

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()


def meetings(programs: Sequence[Program], pendings: Sequence[PendingSync]) -> list[Future[Any]]:
    """All of them meet."""
    size, totals = len(programs), Totals(len(programs))

    def meet(rank: int) -> Any:
        group = PeerGroup(rank, size, partial(totals.of, rank))
        try:
            return sync_registered(programs[rank].registry, pendings[rank], group)
        except BaseException:
            totals.fail()
            raise

    with ThreadPoolExecutor(size) as pool:
        return [pool.submit(meet, rank) for rank in range(size)]


def met(programs: Sequence[Program], pendings: Sequence[PendingSync]) -> list[BaseException | None]:
    """All of them meet; gives what each raised."""
    return [one.exception() for one in meetings(programs, pendings)]


def found(programs: Sequence[Program], pendings: Sequence[PendingSync]) -> list[Any]:
    """The same of those who raise nothing: what exchange gave each."""
    return [one.result() for one in meetings(programs, pendings)]


def stayed(mean: Sequence[float] = (1.0, 2.0), own: str = "a") -> Program:
    program = Program(counter=5, mean=mean, own=own, teacher=3.0)
    program.held["log"] = {"best": 0.25}
    return program


def test_a_joiner_takes_shared_values_and_means_and_keeps_its_own():
    first, second = stayed(), stayed(mean=(3.0, 2.0), own="b")
    joiner = Program(counter=0, mean=(np.nan, 8.0), own="c", teacher=0.0)
    pendings = [PendingSync(0, loads_values=one, holders=(0, 1)) for one in (False, False, True)]
    assert met([first, second, joiner], pendings) == [None] * 3
    for program in (first, second, joiner):
        assert program.held["counter"] == 5
        assert program.held["log"] == {"best": 0.25}
        assert program.held["mean"].tolist() == [2.0, 2.0], "what the joiner began with is in no mean"
        assert program.teacher.numpy().tolist() == [3.0, 0.5]
    assert [one.held["own"] for one in (first, second, joiner)] == ["a", "b", "c"]


def test_after_a_loss_all_take_what_is_shared_from_the_peer_that_is_furthest_on():
    behind, ahead = stayed(), stayed(mean=(3.0, 2.0))
    ahead.held["counter"] = 6
    assert met([behind, ahead], [PendingSync(1, loads_values=True, holders=(1,))] * 2) == [None] * 2
    assert (behind.held["counter"], ahead.held["counter"]) == (6, 6)
    assert behind.held["mean"].tolist() == ahead.held["mean"].tolist() == [3.0, 2.0]


@pytest.mark.parametrize("pending", [PendingSync(), PendingSync(0, loads_values=True)], ids=["same view", "beginning"])
def test_averaged_values_become_the_mean_of_all_that_begin_or_stay_together(pending):
    first, second = stayed(), stayed(mean=(3.0, 4.0))
    assert met([first, second], [pending] * 2) == [None] * 2
    assert first.held["mean"].tolist() == second.held["mean"].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("pending", [PendingSync(), PendingSync(0)], ids=["same view", "new view"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("counter", lambda program: program.held.update(counter=6)),
        ("teacher", lambda program: program.teacher.assign([3.01, 0.5])),
    ],
)
def test_a_shared_value_that_differs_between_peers_that_stayed_is_named(pending, name, change):
    """By more than rounding, where it is a float."""
    first, second = stayed(), stayed()
    change(second)
    errors = [one for one in met([first, second], [pending, pending]) if isinstance(one, UsageError)]
    assert f"'{name}' differs between the peers" in str(errors[0])


@pytest.mark.parametrize("pending", [PendingSync(), PendingSync(0)], ids=["same view", "new view"])
def test_a_shared_value_that_differs_by_rounding_becomes_rank_0s_and_is_told(pending):
    first, second, third = stayed(), stayed(), stayed()
    second.teacher.assign([3.00001, 0.5])
    told = found([first, second, third], [pending] * 3)
    assert second.teacher.numpy().tolist() == [3.0, 0.5]
    assert [list(one) for one in told] == [[], ["teacher"], []]
    assert told[1]["teacher"].difference == pytest.approx(1e-5, rel=0.1)


def test_at_a_barrier_of_the_same_view_all_raise_where_a_value_differs_by_more():
    first, second, third = stayed(), stayed(), stayed()
    third.held["counter"] = 4
    assert [type(one) for one in met([first, second, third], [PendingSync()] * 3)] == [UsageError] * 3


def test_alone_nothing_is_sent_and_a_value_of_another_form_is_still_told():
    program = stayed()
    alone = PeerGroup(0, 1, lambda tensors: pytest.fail("alone, nothing is sent"))
    sync_registered(program.registry, PendingSync(), alone)
    program.held["counter"] = "five"
    with pytest.raises(UsageError, match="was int"):
        sync_registered(program.registry, PendingSync(), alone)


@pytest.mark.parametrize("source", [None, 1])
def test_what_the_hook_of_the_source_sets_all_take_whatever_theirs_set(source):
    peers = [stayed(), stayed(own="b"), stayed(own="c")]
    others = [{"counter": 7}, {"counter": 8, "teacher": [4.0, 1.5]}, {}]
    others = others if source else [others[1], others[0], others[2]]
    pendings = [PendingSync(source, set_values=one) for one in others]
    assert met(peers, pendings) == [None] * 3
    for program in peers:
        assert program.held["counter"] == 8
        assert program.teacher.numpy().tolist() == [4.0, 1.5]
        assert program.held["log"] == {"best": 0.25}


def test_what_only_another_peers_hook_sets_differs_and_is_refused_by_name():
    peers = [stayed(), stayed(own="b")]
    raised = met(peers, [PendingSync(), PendingSync(set_values={"counter": 9})])
    assert all("'counter' differs between the peers" in str(one) for one in raised)


def test_alone_a_hook_sets_what_it_likes():
    program = stayed()
    assert met([program], [PendingSync(set_values={"counter": 9, "teacher": np.zeros(2)})]) == [None]
    assert (program.held["counter"], program.teacher.numpy().tolist()) == (9, [0.0, 0.0])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 3, "no shared value of that name is registered; there are 'counter', 'log', 'teacher'"),
        ("mean", [1.0, 2.0], "no shared value of that name"),
        ("counter", "many", "counter"),
        ("teacher", 1.0, r"the variable is float32\(2,\), and this is float64\(\)"),
        ("teacher", ["a", "b"], r"the variable is float32\(2,\)"),
    ],
)
def test_what_a_hook_cannot_set_is_refused(name, value, message):
    with pytest.raises(UsageError, match=rf"hook 'cool' called control\.set_value\('{name}', .*{message}"):
        stayed().registry.accepted_value(name, value, by="cool")


def of_small_numbers(dtype: tf.DType) -> Registry:
    registry = Registry()
    registry.register_variable("level", tf.Variable(0, dtype=dtype), kind="shared")
    return registry


@pytest.mark.parametrize("value", [300, np.array(-129), 2**70])
def test_a_whole_number_that_the_variable_has_no_room_for_is_refused_and_not_cut(value):
    with pytest.raises(UsageError, match=r"'level', .*: the variable is int8\(\), and this is"):
        of_small_numbers(tf.int8).accepted_value("level", value, by="cool")


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.uint64], ids=lambda one: one.name)
def test_a_whole_number_that_fits_is_set_whatever_the_variables_width(dtype):
    registry = of_small_numbers(dtype)
    registry.accepted_value("level", 3, by="cool")
    sync_registered(registry, PendingSync(set_values={"level": 3}), PeerGroup(0, 1, list))
    assert registry.of("shared")["level"].numpy() == 3


@pytest.mark.parametrize("source", [0, 1])
def test_variables_of_any_type_become_those_of_one_rank_bit_by_bit(source):
    """A queue of keys, whole numbers, truth values and a NaN; what is the same on all is not sent."""
    totals, sent = Totals(3), [0, 0, 0]

    def taken(rank: int) -> list[Any]:
        held = [
            tf.Variable(np.array([[rank, np.nan], [-0.0, 2.0]], np.float32)),
            tf.Variable(np.array([rank == 1, True])),
            tf.Variable(7, dtype=tf.int64),
            tf.Variable(np.array([250 + rank], np.uint8)),
            tf.Variable(7 * rank, dtype=tf.int64),
            tf.Variable(np.float64(rank)),
        ]

        def total(tensors: Sequence[Any]) -> list[Any]:
            sent[rank] += sum(int(tf.size(one)) * one.dtype.size for one in tensors)
            return totals.of(rank, tensors)

        PeerGroup(rank, 3, total).assign_from_rank(held, rank=source)
        return [one.numpy().tobytes() for one in held]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(taken, range(3)))
    assert found[0] == found[1] == found[2]
    first = np.frombuffer(found[0][0], np.float32)
    assert (first[0], np.isnan(first[1]), np.signbit(first[2])) == (source, True, True)
    whole = [one.to_bytes(8, "little") for one in (7, 7 * source)]
    assert found[0][1:] == [bytes([source, 1]), whole[0], bytes([250 + source]), whole[1], np.float64(source).tobytes()]
    assert set(sent) == {6 * 64 + 40}, "a checksum for each, and 38 bytes of values in whole words"


@pytest.mark.parametrize(("has_loop_state", "told"), [(False, [1]), (True, [])])
def test_a_joiner_holds_the_state_once_it_has_all_that_goes_along(has_loop_state: bool, told: list[int]) -> None:
    """A loop that has more to give, as the callbacks of a fit keep some, says itself when it is there."""
    completed: list[int] = []
    membership: Any = StandaloneMembership()
    membership.mark_state_complete = lambda: completed.append(1)
    run, given = linear_run(membership=membership), {"best": 1.0}
    run.training.register("best", lambda: given["best"], lambda value: given.update(best=value))
    run.step(np.ones([2, 2], np.float32))
    record = run.training._run
    completed.clear()
    record.declared.has_loop_state = has_loop_state
    ((_, mirror),) = record.registry._variables.values()
    mirror.assign(0.5)  # as it comes with the variables of the others
    record.state.registered_read(step=record.steps())
    _restore_registered(record, record.steps())
    assert (given["best"], completed) == (0.5, told)
    complete_state(record)
    assert completed == [*told, 1]


@pytest.mark.parametrize(
    "content", [b"", b"a", b"four", bytes(range(254)) * 4, bytes(range(254)) * 4 + b"z", bytes(range(256)) * 5]
)
def test_the_bytes_of_rank_0_reach_all(content):
    given = {0: content}
    found = on_peers(3, lambda rank, one: PeerGroup(rank, 3, total_of(one)).from_rank(0, given.get(rank, b"not heard")))
    assert found == [content] * 3


def test_alone_there_is_nobody_to_ask():
    one = PeerGroup(0, 1, lambda tensors: pytest.fail("a message to nobody"))
    assert one.leads
    assert one.from_rank(0, b"own") == b"own"
    one.assign_from_rank([tf.Variable(1.0)])
