"""Who is on the bill for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kungfu.tune.simulate.tenancy import Tenancy, tenancies
from tests.tune.instances import MANY


def test_the_oldest_instances_go_first() -> None:
    assert tenancies([2, 5, 3, 0, 1]) == (Tenancy(0, 1, 2), Tenancy(1, 2, 3), Tenancy(4, 4, 1))


@MANY
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_every_stage_holds_as_many_instances_as_it_needs(instances: list[int]) -> None:
    groups = tenancies(instances)
    for stage, needed in enumerate(instances):
        assert sum(group.count for group in groups if group.first <= stage <= group.last) == needed


@MANY
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 90)), min_size=1, max_size=8), st.randoms())
def test_no_other_order_of_release_has_a_smaller_bill(stages: list[tuple[int, int]], chance: object) -> None:
    ends = [sum(seconds for _, seconds in stages[: index + 1]) for index in range(len(stages))]
    begins = [0, *ends]
    ours = sum(
        group.count * max(60, ends[group.last] - begins[group.first])
        for group in tenancies([count for count, _ in stages])
    )
    alive: list[int] = []
    theirs = 0
    for index, (needed, _) in enumerate(stages):
        chance.shuffle(alive)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
        while len(alive) > needed:
            theirs += max(60, begins[index] - alive.pop())
        alive += [begins[index]] * (needed - len(alive))
    theirs += sum(max(60, ends[-1] - begin) for begin in alive)
    assert ours <= theirs
