"""The survey of a profile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.request import Profile
from kungfu.runtime.core.requests.profiling import WARM_UP_STEPS, Point, TimedStep, start_survey, with_measured


def test_throughput_leaves_out_the_first_steps_of_the_size() -> None:
    survey = start_survey(Profile(2, 3, 2), initial_size=1)
    cold = [TimedStep(3, 10, 100.0)] * WARM_UP_STEPS
    survey = with_measured(survey, [*cold, TimedStep(3, 30, 1.0), TimedStep(3, 10, 1.0)])
    assert survey.measured == (Point(3, 2, 40, 2.0),)
    assert survey.measured[0].samples_per_s == 20.0
    assert (survey.goal, survey.is_measured) == (2, False)


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
        goal = survey.goal
        strange = [TimedStep(size, 7, 1.0) for size in others if size != goal]
        survey = with_measured(survey, [*strange, *[TimedStep(goal, 12, 0.5)] * (WARM_UP_STEPS + steps)])
    assert [point.size for point in survey.measured] == list(range(minimum + more, minimum - 1, -1))
    assert {(point.steps, point.samples_per_s) for point in survey.measured} == {(steps, 24.0)}
    assert survey.goal == initial_size
