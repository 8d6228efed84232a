"""The survey of a profile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.request import Profile
from kungfu.runtime.core.requests.profiling import WARM_UP_STEPS, Goal, Point, TimedStep, start_survey, with_measured


def test_throughput_leaves_out_the_first_steps_of_the_size() -> None:
    survey = start_survey(Profile(2, 3, 2), initial_size=1)
    cold = [TimedStep(3, 10, 100.0)] * WARM_UP_STEPS
    survey = with_measured(survey, [*cold, TimedStep(3, 30, 1.0), TimedStep(3, 10, 1.0)])
    assert survey.measured == (Point(3, 2, 40, 2.0),)
    assert survey.measured[0].samples_per_s == 20.0
    assert (survey.goal, survey.is_measured) == (Goal(2), False)


def test_each_size_is_measured_at_each_batch_by_steps_of_exactly_that_batch() -> None:
    survey = start_survey(Profile(1, 2, 1, batches=(8, 16)), initial_size=2, batch=12)
    goals = []
    while not survey.is_measured:
        goals.append(survey.goal)
        others = [TimedStep(survey.goal.size, one, 1.0) for one in (3, 8, 12, 16) if one != survey.goal.batch]
        assert with_measured(survey, others * 9) == survey, "the end of an epoch, and the batch before"
        survey = with_measured(survey, [TimedStep(survey.goal.size, survey.goal.batch or 0, 0.5)] * (WARM_UP_STEPS + 1))
    assert goals == [Goal(2, 8), Goal(2, 16), Goal(1, 8), Goal(1, 16)]
    assert [(one.size, one.samples) for one in survey.measured] == [(2, 8), (2, 16), (1, 8), (1, 16)]
    assert (survey.goal, survey.is_over) == (Goal(2, 12), False)
    assert with_measured(survey, [TimedStep(2, 12, 0.5)]).is_over


def test_steps_of_other_sizes_and_steps_without_a_time_do_not_count() -> None:
    survey = start_survey(Profile(2, 2, 1), initial_size=3)
    assert (
        with_measured(survey, [TimedStep(3, 10, 1.0), TimedStep(2, 10, 0.0), TimedStep(2, 10, float("nan"))]) == survey
    )


@given(
    minimum=st.integers(1, 4),
    more=st.integers(0, 4),
    initial_size=st.integers(1, 8),
    steps=st.integers(1, 5),
    others=st.lists(st.integers(1, 9), max_size=20),
)
def test_every_size_is_measured_once_from_the_largest_down(
    minimum: int, more: int, initial_size: int, steps: int, others: list[int]
) -> None:
    survey = start_survey(Profile(minimum, minimum + more, steps), initial_size=initial_size)
    while not survey.is_measured:
        goal = survey.goal.size
        strange = [TimedStep(size, 7, 1.0) for size in others if size != goal]
        survey = with_measured(survey, [*strange, *[TimedStep(goal, 12, 0.5)] * (WARM_UP_STEPS + steps)])
    assert [point.size for point in survey.measured] == list(range(minimum + more, minimum - 1, -1))
    assert {(point.steps, point.samples_per_s) for point in survey.measured} == {(steps, 24.0)}
    assert survey.goal == Goal(initial_size)
    assert survey.is_over
