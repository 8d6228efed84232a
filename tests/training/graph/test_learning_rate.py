"""The learning rate under a schedule, in one run after the other of the same optimizer."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from kungfu.framework_internals import learning_rate_or_schedule
from kungfu.runtime.core.terms import Ramp
from kungfu.training.graph.learning_rate import LearningRateControl, make_learning_rate, without_factor


def scheduled() -> Any:
    """An optimizer whose schedule says 0.5 at its first step."""
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, decay_steps=100, decay_rate=0.5))


def begun(optimizer: Any, ramp: Ramp | None, *, steps: int = 40) -> LearningRateControl:
    """The control of a run of which this is the first ramp."""
    control = make_learning_rate([optimizer])
    control.put_in_force(ramp, done=steps)
    return control


def test_what_a_run_leaves_on_a_schedule_is_of_the_next_run_and_of_its_joiners() -> None:
    """A joiner, and a run that is resumed, know the first ramp alone: it comes with the terms of the view."""
    old = scheduled()
    begun(old, Ramp(1.0, 4.0, since=0, over=8.0))
    second = make_learning_rate([old])
    ramp = second.first_ramp(steps=40)
    assert ramp is not None
    second.put_in_force(ramp, done=40)
    joined = begun(scheduled(), ramp)
    for control in (second, joined):
        assert (control.in_force(), control.destined()) == (pytest.approx(2.0), pytest.approx(2.0))
        assert control.schedule() == pytest.approx(0.5), "of the user's own schedule"
        assert control.ramp_start() == 4.0
    third = make_learning_rate([old])
    assert third.first_ramp(steps=80) == Ramp(4.0, 4.0, since=80, over=0.0), "once, however often it trains"
    assert type(without_factor(learning_rate_or_schedule(old))) is keras.optimizers.schedules.ExponentialDecay


def test_a_schedule_that_no_rule_has_moved_begins_as_it_is() -> None:
    optimizer = scheduled()
    for _ in range(2):
        control = make_learning_rate([optimizer])
        assert control.first_ramp(steps=0) is None
    assert begun(optimizer, None).in_force() == pytest.approx(0.5)
