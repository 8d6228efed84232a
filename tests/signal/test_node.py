"""The nodes: placement, when they are known, and what a user must not do with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kungfu.errors import PolicyError
from kungfu.ops import all_gather, all_reduce
from kungfu.signal import Constant, Map, Signal, Source, TrainingSignals, as_signal, topological

training = TrainingSignals()


@pytest.mark.parametrize(
    ("made", "placement", "known"),
    [
        (training.loss, "local", "before"),
        (training.size + training.step, "agreed", "before"),
        (training.size * training.mean_loss, "agreed", "after"),
        (training.mean_loss - training.loss, "local", "after"),
        (all_reduce(training.loss, "mean"), "agreed", "after"),
    ],
)
def test_placement_and_moment_follow_from_the_inputs(made: Signal, placement: str, known: str) -> None:
    assert (made.placement, made.known) == (placement, known)


def test_a_gather_gives_a_vector_with_one_entry_a_peer() -> None:
    assert str(all_gather(training.busy_seconds).type) == "float32[size]"


@pytest.mark.parametrize("value", [True, np.bool_(False), 3, np.int32(3), 0.5, np.float64(0.5)])
def test_python_and_numpy_numbers_become_constants(value: object) -> None:
    made = as_signal(value)
    assert isinstance(made, Constant)
    assert made.value == value
    assert type(made.value) in (bool, int, float)


def test_a_numpy_number_on_the_left_makes_a_signal_too() -> None:
    made = np.float32(2) * training.loss
    assert isinstance(made, Map)
    assert made.operation.name == "multiply"


IF = r"a Python `if`.*<agreed bool signal from .*test_node.py:\d+>.*kf.ops.where.*\.when\(condition\)"


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: as_signal("3"), "'3' is a str; a policy computes with signals and Python numbers only"),
        (lambda: bool(training.mean_loss > 1), IF),
        (lambda: 0 < training.mean_loss < 1, IF),  # a chained comparison is a Python `and`
        (lambda: list(all_gather(training.loss)), r"a Python `for` over <agreed float32\[size\].* x\[0\]"),
        *(
            (lambda number=number: number(training.step), "a Python number was requested of <agreed int64 signal")
            for number in (float, int, lambda one: [1, 2][one])
        ),
    ],
)
def test_a_signal_in_place_of_a_python_number_is_refused(misuse: Callable[[], object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        misuse()


def test_a_node_says_where_the_user_made_it() -> None:
    made = training.loss * 2
    path, line = made.origin.rsplit(":", 1)
    assert path == __file__
    assert Path(__file__).read_text().splitlines()[int(line) - 1] == "    made = training.loss * 2"


def test_a_name_makes_another_node_of_the_same_kind_and_origin() -> None:
    plain = training.mean_loss * 2
    named = plain.named("double")
    assert (named.name, named.origin, named.type) == ("double", plain.origin, plain.type)
    assert plain.name == ""
    assert "'double'" in repr(named)


def test_nodes_come_after_what_they_are_made_of_and_only_once() -> None:
    shared = training.size + 1
    root = shared * shared
    order = topological((root,))
    assert [type(one) for one in order] == [Source, Constant, Map, Map]
    assert order[-1] is root


def test_nothing_below_a_leaf_is_walked() -> None:
    leaf = training.loss * 2
    root = leaf + 1
    kinds = {type(one) for one in topological((root,), leaves=frozenset({leaf}))}
    assert kinds == {Map, Constant}


def test_a_chain_of_thousands_of_nodes_is_no_deeper_than_any_other() -> None:
    node: Signal = training.loss
    for _ in range(5000):
        node = node + 1.0
    assert node.placement == "local"
    assert len(topological((node,))) == 10001
