"""A joiner with the registered values that came with the state, in the barrier that admits it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kungfu.runtime.api import StandaloneMembership
from kungfu.training.loop.barrier import _restore_registered
from kungfu.training.loop.between_steps import complete_state
from tests.training.linear import linear_run


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
