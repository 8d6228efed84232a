"""A joiner with the registered values that came with the state, in the barrier that admits it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.training.linear import linear_run


@pytest.mark.parametrize(("has_more", "told"), [(False, [1]), (True, [])])
def test_a_joiner_holds_the_state_once_it_has_all_that_goes_along(has_more: bool, told: list[int]) -> None:
    """A loop that has more to give, as the callbacks of a fit keep some, says itself when it is there."""
    run, given = linear_run(), {"best": 1.0}
    run.training.register("best", lambda: given["best"], lambda value: given.update(best=value))
    run.step(np.ones([2, 2], np.float32))
    barrier: Any = run.training._runner.barrier
    completed: list[int] = []
    barrier.membership.mark_state_complete = lambda: completed.append(1)
    barrier.between_steps.has_more = has_more
    ((_, mirror),) = barrier.between_steps.registry._variables.values()
    mirror.assign(0.5)  # as it comes with the variables of the others
    barrier.state.registered_read(step=barrier.steps())
    barrier._take_registered(barrier.steps())
    assert (given["best"], completed) == (0.5, told)
    barrier.complete_state()
    assert completed == [*told, 1]
