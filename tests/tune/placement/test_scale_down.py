"""Which nodes to give back."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.tune import Nodes, Placement, Slot, moves, place, shrink, unplaced
from tests.tune.instances import MANY
from tests.tune.placement.test_controller import _by_node, _on, rounds

THREE = Nodes(("n0", "n1", "n2"), 4)


def test_all_go_to_the_node_with_the_largest_trial_and_that_one_stays() -> None:
    before = _on(A="n0:0", B="n1:0", C="n2:0 n2:1")
    found = shrink(before, nodes=THREE, keep=1)
    assert _by_node(found.placement) == {"n2": "ABCC"}
    assert (found.released, found.moved) == (("n0", "n1"), ("A", "B"))


def test_an_empty_node_goes_before_one_in_use() -> None:
    before = _on(A="n0:0", C="n2:0 n2:1")
    found = shrink(before, nodes=THREE, keep=2)
    assert (found.released, found.moved) == (("n1",), ())
    assert found.placement is before


def test_a_node_with_a_reserved_trial_is_kept() -> None:
    before = _on(A="n0:0", B="n1:0 n1:1 n1:2")
    assert shrink(before, nodes=Nodes(("n0", "n1"), 4), keep=1).moved == ("A",)
    assert shrink(before, nodes=Nodes(("n0", "n1"), 4), keep=1, reserved=["A"]).moved == ("B",)
    with pytest.raises(UsageError, match="do not hold"):
        shrink(before, nodes=Nodes(("n0", "n1"), 4), keep=1, reserved=["A", "B"])


def test_nodes_that_cannot_hold_all_trials_are_refused() -> None:
    before = _on(A="n0:0 n0:1 n0:2", B="n1:0 n1:1 n1:2")
    with pytest.raises(UsageError, match="1 nodes of 4 GPUs do not hold the 2 trials with their 6 GPUs"):
        shrink(before, nodes=Nodes(("n0", "n1"), 4), keep=1)


@pytest.mark.parametrize("keep", [-1, 4])
def test_a_number_of_nodes_that_there_is_not_is_refused(keep: int) -> None:
    with pytest.raises(UsageError, match=f"cannot keep {keep} of 3 nodes"):
        shrink(Placement(), nodes=THREE, keep=keep)


def test_among_many_nodes_those_with_the_fewest_trials_are_released() -> None:
    names = tuple(f"n{index}" for index in range(20))
    slots = {f"t{index:02}": (Slot(name, 0), Slot(name, 1)) for index, name in enumerate(names[:10])}
    found = shrink(Placement(slots), nodes=Nodes(names, 2), keep=10)
    assert (found.released, found.moved) == (names[10:], ())


@pytest.mark.slow
@MANY
@given(rounds(tidy=True), st.integers(0, 6))
def test_the_released_nodes_are_empty_and_no_other_choice_moves_fewer(
    case: tuple[Nodes, list[dict[str, int]]], spare: int
) -> None:
    nodes, (allocation, _) = case
    before = place(allocation, last=Placement(), nodes=nodes)
    keep = min(len(nodes.names), -(-sum(allocation.values()) // nodes.gpus) + spare)
    found = shrink(before, nodes=nodes, keep=keep)
    assert len(found.released) == len(nodes.names) - keep
    assert not {slot.node for slots in found.placement.slots.values() for slot in slots} & set(found.released)
    assert found.placement.slots.keys() == allocation.keys()
    assert found.moved == moves(before, after=found.placement)
    for kept in combinations(nodes.names, keep):
        other = place(allocation, last=before, nodes=Nodes(kept, nodes.gpus))
        assert unplaced(allocation, placement=other) or len(moves(before, after=other)) >= len(found.moved)
