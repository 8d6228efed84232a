"""Actions as values: what they need, and the same over other nodes."""

from __future__ import annotations

import pytest

from kungfu import control, ops
from kungfu.control import Action
from kungfu.control.action import mask_of, operands, rewired, setting_of, target_of
from kungfu.signal import Signal, TrainingSignals

training = TrainingSignals()
LOSSES = ops.all_gather(training.loss)
EVERY: dict[str, Action] = {
    "rescale": control.always().rescale(training.mean_loss).action,
    "batch": control.always().set_global_batch_size(training.mean_loss).action,
    "rate": control.always().set_learning_rate(training.mean_loss, over_samples=9).action,
    "stop": control.always().stop().action,
    "call": control.always().call(lambda control, a, b: None, training.step, training.size).action,
    "evict": control.always().evict(LOSSES > 1).action,
    "replace": control.always().replace(LOSSES > 1).action,
    "checkpoint": control.always().checkpoint("best").action,
    "restore": control.always().restore("best").action,
}


def test_each_action_names_what_it_needs() -> None:
    counts = {name: len(operands(one)) for name, one in EVERY.items()}
    assert counts == dict.fromkeys(EVERY, 1) | {"stop": 0, "call": 2, "checkpoint": 0, "restore": 0}
    assert {name for name, one in EVERY.items() if target_of(one) is not None} == {"rescale", "batch", "rate"}
    assert {name for name, one in EVERY.items() if mask_of(one) is not None} == {"evict", "replace"}


def test_three_actions_set_something_of_which_a_job_has_one() -> None:
    found = {name: setting_of(one) for name, one in EVERY.items() if setting_of(one)}
    assert found == {"rescale": "size", "batch": "global batch size", "rate": "learning rate"}


@pytest.mark.parametrize("name", EVERY)
def test_an_action_over_other_nodes_keeps_the_rest(name: str) -> None:
    action = EVERY[name]
    others: dict[Signal, Signal] = dict.fromkeys(operands(action), training.step)
    again = rewired(action, shared=others)
    assert type(again) is type(action)
    assert all(one is training_step for one, training_step in zip(operands(again), others.values(), strict=True))
    kept = {"keep", "over", "unit", "fn", "name"} & vars(action).keys()
    assert all(getattr(again, one) == getattr(action, one) for one in kept)
