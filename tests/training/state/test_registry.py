"""Registered values beside the training state, their arrays, and hooks on a change of membership."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.core.barrier import BarrierResult, Decision, LossRecovery
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import CheckpointSettings
from kungfu.training.graph.training_state import StateClasses
from kungfu.training.loop.between_steps import complete_pending, left_pending
from kungfu.training.state.registry import Registry, Rescaled, RescaleHooks, codec_of
from tests.training.linear import linear_run, points


def registered() -> tuple[Registry, dict[str, Any]]:
    """A registry with a value of each kind, and where the program holds them."""
    registry, held = Registry(), {"counter": 7, "notes": {"a": 1}, "teacher": tf.Variable([2.0, 2.0])}
    for name, kind in (("counter", "shared"), ("notes", "local")):
        registry.register(name, partial(held.get, name), partial(held.__setitem__, name), kind=kind, room_bytes=64)
    registry.register_variable("teacher", held["teacher"], kind="averaged")
    return registry, held


def test_a_value_that_is_already_the_agreed_one_is_not_set_again():
    registry, held = registered()
    registry.collect()
    del held["counter"]
    registry.restore()
    assert "counter" not in held


def test_registered_variables_are_named_as_such_and_sorted_by_kind():
    classes = registered()[0].seal(StateClasses({}, {}, {}))
    found = [list(one) for one in (classes.shared, classes.averaged, classes.local)]
    assert found == [["registered/counter"], ["registered/teacher"], ["registered/notes"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a b"}, "a name is made of"),
        ({"name": ""}, "a name is made of"),
        ({"name": "there"}, "called twice"),
        ({"kind": "own"}, "one of shared, averaged, local"),
        ({"set": None}, "two functions"),
        ({"get": 3}, "two functions"),
        ({"get": lambda: (1, 2)}, "register a bool"),
        ({"kind": "averaged", "get": lambda: 3}, "int64, which has no mean"),
        ({"get": tf.Variable(1.0)}, "leave out set"),
        ({"get": tf.Variable("a"), "set": None}, "must hold numbers"),
        ({"get": tf.Variable([1.0], shape=[None]), "set": None}, "shape that is known"),
        ({"room_bytes": 0}, "room_bytes=0"),
    ],
)
def test_what_cannot_be_registered_is_refused_and_leaves_nothing_behind(arguments, message):
    run = linear_run()
    run.training.register("there", lambda: 1, print)
    arguments = {"name": "x", "get": lambda: 1, "set": print, **arguments}
    with pytest.raises(UsageError, match=message):
        run.training.register(arguments.pop("name"), arguments.pop("get"), arguments.pop("set"), **arguments)
    run.training.register("x", lambda: 1, print)


def test_after_the_first_step_nothing_more_is_registered():
    run = linear_run()
    run.step(points(2))
    with pytest.raises(UsageError, match="between kf"):
        run.training.register("late", lambda: 1, print)


def test_a_variable_that_goes_along_anyway_is_refused_by_its_name():
    run = linear_run()
    run.training.register("weights", run.model.trainable_variables[0].value)
    with pytest.raises(UsageError, match="'model/linear/head/kernel', which goes along anyway"):
        run.step(points(2))


# ---- values as arrays, and back --------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(value=st.none() | st.text() | st.lists(JSON) | st.dictionaries(st.text(), JSON) | st.binary())
def test_what_json_knows_and_bytes_come_back_as_they_were(value):
    codec = codec_of("x", value, room_bytes=1 << 20)
    back = codec.value(codec.cast(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [True, -7, 0.1, math.inf, np.float32(0.1), np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 2)), 1 << 62],
)
def test_numbers_come_back_with_their_type(value):
    codec = codec_of("x", value, room_bytes=1)
    back = codec.value(codec.cast(value))
    assert type(back) is type(value)
    assert np.array_equal(back, value)


def test_an_array_that_comes_back_is_the_users_own():
    codec = codec_of("x", np.zeros(3), room_bytes=1)
    array = codec.cast(np.ones(3))
    codec.value(array)[0] = 5.0
    assert array.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "a"}, {"a": (1,)}, object(), np.array(["a"]), {1}, 1j, np.array([None]), [b"a"]]
)
def test_what_would_not_come_back_is_refused(value):
    with pytest.raises(UsageError, match="register a bool"):
        codec_of("x", value, room_bytes=100)


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (1, 2.0, "was int when it was registered and is float"),
        (1, True, "and is bool"),
        (1.0, None, "and is JSON"),
        (np.zeros(2), np.zeros(3), r"was an array float64\[2\] .* is an array float64\[3\]"),
        (np.zeros(2), np.zeros(2, np.float32), "float32"),
        (b"a", "a", "was bytes"),
        ({}, (), r"gives \(\)"),
    ],
)
def test_a_value_that_changes_its_form_is_told(first, then, message):
    with pytest.raises(UsageError, match=message):
        codec_of("x", first, room_bytes=100).cast(then)


def test_a_whole_number_beyond_64_bits_is_refused():
    with pytest.raises(UsageError, match="64 bits"):
        codec_of("x", 1 << 63, room_bytes=1)


def test_a_value_that_outgrows_its_room_names_the_room_it_needs():
    codec = codec_of("log", "ab", room_bytes=10)
    with pytest.raises(UsageError, match=r"takes 12 bytes and has room for 10.*room_bytes=24"):
        codec.cast("0123456789")


def test_dicts_that_are_equal_make_equal_arrays():
    codec = codec_of("x", {"a": 1, "b": 2}, room_bytes=100)
    assert np.array_equal(codec.cast({"a": 1, "b": 2}), codec.cast({"b": 2, "a": 1}))


# ---- hooks -----------------------------------------------------------------------------------------------------------


def view(version: int, *peers: int) -> View:
    return View(version, tuple(Peer(peer, f"a:{peer}") for peer in peers))


def came(before: View | None, after: View, **more: Any) -> BarrierResult:
    """The result of a barrier on peer 1."""
    known = None if before is None else Decision(before, Terms())
    return BarrierResult(known, Decision(after, Terms()), 1, **more)


LOST = LossRecovery({1: "killed by SIGKILL"}, "rank 1 is gone", 0)
TWO = view(1, 0, 1)


@pytest.mark.parametrize(
    ("result", "founders", "told"),
    [
        (came(TWO, view(2, 0, 1, 2), sources=(0, 1)), 2, [Rescaled("grew", 2, 3, 1, 40)]),
        (came(TWO, view(2, 1), sources=(0,)), 2, [Rescaled("shrank", 2, 1, 0, 40)]),
        (came(TWO, view(2, 1, 2), sources=(0,)), 2, [Rescaled("exchanged", 2, 2, 0, 40)]),
        (came(TWO, view(3, 1), recovery=LOST, sources=(0,)), 2, [Rescaled("recovered", 2, 1, 0, 40)]),
        (came(None, view(2, 0, 2, 1), sources=(0, 1)), 0, [Rescaled("joined", 0, 3, 2, 40)]),
        (came(None, TWO, sources=(0,)), 2, []),
        (came(TWO, TWO), 2, []),
        (came(TWO, view(2, 0)), 2, []),
    ],
)
def test_a_hook_hears_of_each_change_as_its_peer_sees_it(result, founders, told):
    run, heard = linear_run().training._run, list[Rescaled]()
    run.checkpoints._settings = CheckpointSettings(founders=founders)
    run.hooks.add(heard.append)
    left_pending(run, result, step=40)
    assert heard == [], "hooks are called before the next step, where all programs are at the same place"
    complete_pending(run)
    assert heard == told


def test_hooks_are_called_in_their_order_and_an_error_names_the_one_that_raised():
    hooks, calls = RescaleHooks(), []

    def failing(rescaled: Rescaled) -> None:
        raise LookupError("of the hook")

    for function in (lambda _: calls.append(1), failing, lambda _: calls.append(3)):
        hooks.add(function)
    with pytest.raises(UsageError, match=r"failing of training\.on_rescale.*LookupError: of the hook"):
        hooks.call(Rescaled("grew", 1, 2, 0, 5))
    assert calls == [1]


def test_what_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="takes a function"):
        linear_run().training.on_rescale(3)


def test_a_hook_may_be_a_decorator_and_hears_nothing_of_an_unchanged_run():
    run, heard = linear_run(), []

    @run.training.on_rescale
    def hook(rescaled):
        heard.append(rescaled)

    assert hook.__name__ == "hook"
    run.step(points(2))
    assert heard == []
