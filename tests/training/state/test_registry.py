"""Registered values beside the training state, on two states that stand for two peers."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.graph.training_state import StateClasses
from kungfu.training.state.registry import Registry
from tests.training.linear import linear_run, points


def registered() -> tuple[Registry, dict[str, Any]]:
    """A registry with a value of each kind, and where the program holds them."""
    registry, held = Registry(), {"counter": 7, "notes": {"a": 1}, "teacher": tf.Variable([2.0, 2.0])}
    registry.register(
        "counter", lambda: held["counter"], lambda value: held.update(counter=value), kind="shared", room_bytes=1
    )
    registry.register(
        "notes", lambda: held["notes"], lambda value: held.update(notes=value), kind="local", room_bytes=64
    )
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
    assert (list(classes.shared), list(classes.averaged), list(classes.local)) == (
        ["registered/counter"],
        ["registered/teacher"],
        ["registered/notes"],
    )


@pytest.mark.parametrize(
    ("given", "told"),
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
def test_what_cannot_be_registered_is_told_and_leaves_nothing_behind(given, told):
    run = linear_run()
    run.training.register("there", lambda: 1, print)
    given = {"name": "x", "get": lambda: 1, "set": print, **given}
    with pytest.raises(UsageError, match=told):
        run.training.register(given.pop("name"), given.pop("get"), given.pop("set"), **given)
    if given.get("name") is None:
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
