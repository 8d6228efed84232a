"""The placement controller: the cases worked out by hand, and what holds for any round."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.tune import Nodes, Simulator, Slot, TrialPlacement, moves, place, shrink, unplaced
from kungfu_planning.tune.timeline import mean_stage_usage
from tests.planning.tune.instances import certain, planned


def _on(**places: str) -> TrialPlacement:
    """``_on(A="n0:0 n0:1")``: trial A on GPUs 0 and 1 of n0."""
    slots = {trial: tuple(Slot(each[:-2], int(each[-1])) for each in text.split()) for trial, text in places.items()}
    return TrialPlacement(slots)


def _by_node(placement: TrialPlacement) -> dict[str, str]:
    """Trials by node, one letter a GPU."""
    found: dict[str, str] = {}
    for trial, slots in sorted(placement.slots.items()):
        for slot in slots:
            found[slot.node] = found.get(slot.node, "") + trial
    return found


TWO = Nodes(("n0", "n1"), 4)


def test_one_of_two_half_full_nodes_is_cleared_for_a_trial_that_needs_a_whole_one() -> None:
    before = _on(A="n0:0 n0:1", B="n1:0 n1:1")
    after = place({"A": 2, "B": 2, "C": 4}, last=before, nodes=TWO)
    assert sorted(_by_node(after).values()) == ["AABB", "CCCC"]
    assert len(moves(before, after=after)) == 1


def test_a_trial_takes_the_fullest_node_that_still_holds_it() -> None:
    before = _on(A="n0:0 n0:1", B="n1:0 n1:1 n1:2")
    after = place({"A": 2, "B": 3, "C": 1}, last=before, nodes=TWO)
    assert _by_node(after) == {"n0": "AA", "n1": "BBBC"}


def test_ended_and_resized_trials_leave_their_gpus_and_the_others_keep_theirs() -> None:
    before = _on(A="n0:0 n0:1", B="n0:2 n0:3", C="n1:0")
    after = place({"B": 2, "C": 4}, last=before, nodes=TWO)
    assert after.slots["B"] == before.slots["B"]
    assert _by_node(after) == {"n0": "BB", "n1": "CCCC"}


def test_a_trial_on_a_node_that_is_gone_is_placed_again() -> None:
    before = _on(A="n0:0", B="n1:0 n1:1")
    after = place({"A": 1, "B": 2}, last=before, nodes=Nodes(("n1",), 4))
    assert _by_node(after) == {"n1": "ABB"}
    assert after.slots["B"] == before.slots["B"]


def test_a_trial_that_nothing_can_make_room_for_waits() -> None:
    before = _on(A="n0:0 n0:1 n0:2", B="n1:0 n1:1 n1:2")
    after = place({"A": 3, "B": 3, "C": 2}, last=before, nodes=TWO)
    assert after.slots == before.slots
    assert unplaced({"A": 3, "B": 3, "C": 2}, placement=after) == ("C",)


def test_a_trial_of_the_same_size_is_not_displaced() -> None:
    before = _on(A="n0:0 n0:1 n0:2", B="n1:0 n1:1 n1:2")
    after = place({"A": 3, "B": 3, "C": 3}, last=before, nodes=TWO)
    assert after.slots == before.slots


def test_a_reserved_trial_is_not_displaced() -> None:
    before = _on(A="n0:0 n0:1", B="n1:0 n1:1")
    wanted = {"A": 2, "B": 2, "C": 4}
    assert moves(before, after=place(wanted, last=before, nodes=TWO, reserved=["A"])) == ("B",)
    both = place(wanted, last=before, nodes=TWO, reserved=["A", "B"])
    assert unplaced(wanted, placement=both) == ("C",)


def test_a_reserved_trial_may_end_but_not_change() -> None:
    before = _on(A="n0:0 n0:1")
    assert not place({}, last=before, nodes=TWO, reserved=["A"]).slots
    with pytest.raises(UsageError, match="A is reserved with 2 GPUs and cannot change to 3"):
        place({"A": 3}, last=before, nodes=TWO, reserved=["A"])


def test_a_trial_of_no_gpu_and_a_gpu_of_two_trials_are_refused() -> None:
    with pytest.raises(UsageError, match="trial A is given 0 GPUs"):
        place({"A": 0}, last=TrialPlacement(), nodes=TWO)
    with pytest.raises(UsageError, match="GPU 0 of node n0 is given to A and to B"):
        _on(A="n0:0", B="n0:0")
    with pytest.raises(UsageError, match=r"\['n0'\] are given twice"):
        Nodes(("n0", "n0"), 4)
    with pytest.raises(UsageError, match="nodes of 0 GPUs"):
        Nodes(("n0",), 0)


@st.composite
def rounds(draw: st.DrawFn, *, tidy: bool) -> tuple[Nodes, list[dict[str, int]]]:
    """Nodes, and two allocations that follow each other and fit in sum; tidy ones divide each other."""
    gpus = draw(st.sampled_from((1, 2, 4, 8)) if tidy else st.integers(1, 8))
    nodes = Nodes(tuple(f"n{index}" for index in range(draw(st.integers(1, 6)))), gpus)
    powers = [2**power for power in range(4) if 2**power <= gpus]
    sizes = st.sampled_from([*powers, 2 * gpus, 3 * gpus]) if tidy else st.integers(1, 3 * gpus)
    allocations = []
    for _ in range(2):
        left, allocation = len(nodes.names) * gpus, {}
        for trial, size in draw(st.dictionaries(st.sampled_from("ABCDEFGHIJKLMNOP"), sizes)).items():
            if size <= left:
                allocation[trial] = size
                left -= size
        allocations.append(allocation)
    return nodes, allocations


def _check_shape(placement: TrialPlacement, *, allocation: dict[str, int], nodes: Nodes) -> None:
    for trial, slots in placement.slots.items():
        assert len(slots) == allocation[trial]
        assert len({slot.node for slot in slots}) == -(-allocation[trial] // nodes.gpus)
        assert all(slot.node in nodes.names and slot.gpu < nodes.gpus for slot in slots)


@pytest.mark.slow
@given(rounds(tidy=False))
def test_no_gpu_is_given_twice_and_every_trial_is_on_as_few_nodes_as_can_be(
    case: tuple[Nodes, list[dict[str, int]]],
) -> None:
    nodes, (first, second) = case
    before = place(first, last=TrialPlacement(), nodes=nodes)
    after = place(second, last=before, nodes=nodes)
    _check_shape(before, allocation=first, nodes=nodes)
    _check_shape(after, allocation=second, nodes=nodes)


@pytest.mark.slow
@given(rounds(tidy=True), st.randoms())
def test_sizes_that_divide_each_other_are_placed_in_any_order_and_small_ones_move(
    case: tuple[Nodes, list[dict[str, int]]], chance: object
) -> None:
    """Sizes that divide each other are all placed when they fit in sum; only a trial smaller than a new one ever moves.

    The order of an allocation does not matter, and a second round changes nothing.
    """
    nodes, (first, second) = case
    before = place(first, last=TrialPlacement(), nodes=nodes)
    after = place(second, last=before, nodes=nodes)
    assert unplaced(first, placement=before) == ()
    assert unplaced(second, placement=after) == ()
    new = [gpus for trial, gpus in second.items() if first.get(trial) != gpus]
    for trial in moves(before, after=after):
        assert first[trial] != second[trial] or first[trial] < max(new)
    shuffled = list(second.items())
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert place(dict(shuffled), last=before, nodes=nodes).slots == after.slots
    assert place(second, last=after, nodes=nodes) is after


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
        shrink(TrialPlacement(), nodes=THREE, keep=keep)


def test_among_many_nodes_those_with_the_fewest_trials_are_released() -> None:
    names = tuple(f"n{index}" for index in range(20))
    slots = {f"t{index:02}": (Slot(name, 0), Slot(name, 1)) for index, name in enumerate(names[:10])}
    found = shrink(TrialPlacement(slots), nodes=Nodes(names, 2), keep=10)
    assert (found.released, found.moved) == (names[10:], ())


@pytest.mark.slow
@given(rounds(tidy=True), st.integers(0, 6))
def test_the_released_nodes_are_empty_and_no_other_choice_moves_fewer(
    case: tuple[Nodes, list[dict[str, int]]], spare: int
) -> None:
    nodes, (allocation, _) = case
    before = place(allocation, last=TrialPlacement(), nodes=nodes)
    keep = min(len(nodes.names), -(-sum(allocation.values()) // nodes.gpus) + spare)
    found = shrink(before, nodes=nodes, keep=keep)
    assert len(found.released) == len(nodes.names) - keep
    assert not {slot.node for slots in found.placement.slots.values() for slot in slots} & set(found.released)
    assert found.placement.slots.keys() == allocation.keys()
    assert found.moved == moves(before, after=found.placement)
    for kept in combinations(nodes.names, keep):
        other = place(allocation, last=before, nodes=Nodes(kept, nodes.gpus))
        assert unplaced(allocation, placement=other) or len(moves(before, after=other)) >= len(found.moved)


@pytest.mark.slow
@given(planned(simulators=certain(packing="placed")))
def test_every_stage_of_a_placed_plan_finds_room(case: tuple[Simulator, tuple[int, ...]]) -> None:
    """A plan that counts instances with trials kept whole can be carried out by the placement controller."""
    simulator, plan = case
    placement = TrialPlacement()
    for held in mean_stage_usage(simulator, plan=plan):
        at_once = min(held.trials, held.gpus)
        allocation = {f"trial-{index:02}": held.gpus_per_trial for index in range(at_once)}
        nodes = Nodes(tuple(f"n{index}" for index in range(held.instances)), simulator.cloud.instance.gpus)
        placement = place(allocation, last=placement, nodes=nodes)
        assert unplaced(allocation, placement=placement) == ()
