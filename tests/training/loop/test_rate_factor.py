"""A factor on the learning rate in the graph: what the updates take, what others see of it, and what keeps it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PolicyError, UsageError
from kungfu.event_log.codec import event_in, event_to_line
from kungfu.event_log.events import HeldEvent
from kungfu.ops import where
from kungfu.policy_definition import shadow
from kungfu.training.graph.average import average
from kungfu.training.graph.learning_rate import LearningRateFactor
from tests.training.linear import linear_model, linear_run, running, shown
from tests.training.loop.test_settings import of_kind, rates, run_with
from tests.training.peers import averaging_of, on_peers

DECAY = keras.optimizers.schedules.ExponentialDecay


def of_step(training: Any) -> Any:
    """1/2, 1/4, 1/8 ..."""
    return kf.control.learning_rate(0.5**training.step)


def of_loss(training: Any) -> Any:
    """The loss is the sum of the weights, which begin at 0; each step takes rate and factor from both of them."""
    return kf.control.learning_rate(1.0 + training.mean_loss / 8)


def by_hand(steps: int, *, rate: float = 1.0) -> list[float]:
    """What the update of each step takes from a weight, with the factor of ``of_loss``."""
    loss, factor, taken = np.float32(0), np.float32(1), []
    for _ in range(steps):
        taken.append(np.float32(rate) * factor)
        factor = np.float32(1) + loss / np.float32(8)
        loss -= np.float32(2) * taken[-1]
    return [float(one) for one in taken]


@pytest.mark.parametrize("eagerly", [False, True], ids=["traced", "eagerly"])
def test_a_factor_moves_the_rate_in_every_step_without_a_barrier_and_in_one_trace(eagerly):
    with running(eagerly=eagerly):
        run, events = run_with(of_loss)
        assert rates(run, steps=5) == pytest.approx(by_hand(5), rel=1e-6)
        early, _ = run_with(of_step)
        assert rates(early, steps=4) == pytest.approx([0.5, 0.25, 0.125, 0.0625])
    assert {one["event"] for one in events if one["stream"] == "events"} <= {"span"}
    told = [one["learning_rate_factor"] for one in events if one["stream"] == "metrics"]
    assert told == pytest.approx(by_hand(5), rel=1e-6)
    if not eagerly:
        assert run.training.traces() == early.training.traces() == 1
        record = run.training._run
        assert int(record.graph_state.posts.others.asked) == int(record.graph_state.posts.changes.asked) == 0


@pytest.mark.parametrize(
    ("optimizer", "plain"),
    [
        (lambda: keras.optimizers.SGD(1.0), [1.0] * 4),
        (lambda: keras.optimizers.SGD(DECAY(1.0, decay_steps=1, decay_rate=0.5)), [1.0, 0.5, 0.25, 0.125]),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0), [1.0] * 4),
    ],
    ids=["a rate", "a schedule", "loss scaling"],
)
def test_the_rate_outside_the_step_and_the_signal_are_without_the_factor(optimizer, plain):
    run, events = run_with(of_step, optimizer=optimizer())
    assert rates(run, steps=4) == pytest.approx([rate * 0.5**step for step, rate in enumerate(plain, start=1)])
    assert [one["learning_rate"] for one in events if one["stream"] == "metrics"] == plain
    assert float(tf.convert_to_tensor(run.optimizer.learning_rate)) in (1.0, 0.0625)


def test_a_callback_and_a_ramp_move_the_rate_that_is_multiplied():
    ramp = lambda training: kf.control.every(2).until(training.step > 2).set_learning_rate(2.0, over_steps=2)  # noqa: E731
    run, _ = run_with(lambda training: (of_step(training), ramp(training)))
    assert rates(run, steps=7) == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1.5 / 32, 2 / 64, 2 / 128])
    run.optimizer.learning_rate = float(tf.convert_to_tensor(run.optimizer.learning_rate)) * 4
    assert rates(run, steps=2) == pytest.approx([8 / 256, 8 / 512])


def test_the_decay_of_weights_takes_the_rate_of_the_update_as_with_keras():
    run, _ = run_with(of_step, optimizer=keras.optimizers.SGD(1.0, weight_decay=0.5))
    weight, expected = 0.0, []
    for factor in (0.5, 0.25, 0.125):
        expected.append(factor * (0.5 * weight) + factor)
        weight -= expected[-1]
    assert rates(run, steps=3) == pytest.approx(expected)


def test_a_factor_that_is_not_usable_leaves_the_last_one_and_is_an_event_once():
    given = {1: math.nan, 3: math.nan, 4: 0.0, 5: -1.0, 6: math.inf}

    def rule(training: Any) -> Any:
        factor = 0.5
        for step, value in given.items():
            factor = where(training.step == step, value, factor)
        return kf.control.learning_rate(factor)

    run, events = run_with(rule)
    assert rates(run, steps=7) == [1.0, *[0.5] * 6]
    (told,) = of_kind(events, "held")
    assert (told["step"], told["asked"], told["action"]) == (3, None, "ScaleLearningRate")


def test_an_infinite_factor_is_an_event_that_can_be_read():
    named = {"rule": "held(cooling)", "action": "ScaleLearningRate", "ranks": (), "budget": ""}
    event = HeldEvent(step=2, saw={"target": math.inf}, asked=math.inf, **named)
    again = event_in(event_to_line(event))
    assert isinstance(again, HeldEvent)
    assert again.headline() == (
        "step 2: cooling asks for a factor of Infinity on the learning rate, which takes a finite number above 0; the "
        "last factor stays, and this is reported once"
    )


def test_a_shadow_moves_nothing_and_tells_of_nothing_but_its_number():
    run, events = run_with(of_step, around=shadow)
    assert rates(run, steps=3) == [1.0] * 3
    assert {one["event"] for one in events if one["stream"] == "events"} <= {"span"}
    assert shown(run.training, "learning_rate_factor") == 0.125


def test_micro_batches_take_one_factor_for_the_update_of_their_step():
    run, _ = run_with(of_step)
    found = []
    for x in run.training.batches(np.ones([12, 2], np.float32), batch_size=4, epochs=1, seed=0, max_local_batch_size=2):
        before = run.weights.copy()
        run.step(x)
        found.append(float((before - run.weights)[0]))
    assert found == pytest.approx([0, 0.5, 0, 0.25, 0, 0.125])


def test_steps_in_a_loop_of_the_graph_take_the_factor_of_each():
    run, _ = run_with(of_loss)
    assert rates(run, steps=1) == [1.0]

    @tf.function
    def steps(x: Any) -> None:
        for _ in tf.range(4):
            run.step(x)

    before = run.weights.copy()
    steps(tf.ones([2, 2]))
    assert float((before - run.weights)[0]) == pytest.approx(sum(by_hand(5)[1:]), rel=1e-5)


def test_a_checkpoint_has_the_factor_that_the_next_step_takes(tmp_path):
    whole = rates(run_with(of_loss)[0], steps=6)
    run, _ = run_with(of_loss)
    rates(run, steps=3)
    run.training.checkpoint(str(tmp_path))
    run.step(np.ones([2, 2], np.float32))
    run.training.finish()
    again, _ = run_with(of_loss)
    assert again.training.resume(str(tmp_path))
    assert rates(again, steps=2) == whole[4:], "bit for bit"


def test_peers_take_rank_0s_factor_whatever_their_own_is():
    def factor(rank, attachment):
        plain = averaging_of([kf.Policy("of_loss", of_loss)], rank, attachment, size=3, batch=3)
        made = LearningRateFactor(keras.optimizers.SGD(1.0), index=plain.program.plan.rate_factor_index)
        (held,) = [one for one in plain.program.variables if one.variable.dtype == tf.float32]
        held.variable.assign(0.1 + rank)
        average(replace(plain, rate_factor=made), [tf.constant([1.0])], loss=8.0)
        return float(made.variable), float(held.variable)

    assert on_peers(3, factor) == [(pytest.approx(0.1), 2.0)] * 3


def test_a_run_whose_step_does_not_read_the_rate_is_refused():
    class Deaf(keras.optimizers.SGD):
        def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
            for gradient, one in zip(grads, trainable_variables, strict=True):
                one.assign_sub(gradient)

        @property
        def learning_rate(self) -> Any:
            return 1.0

    run, _ = run_with(of_step, optimizer=Deaf(1.0))
    with pytest.raises(PolicyError, match=r"test_rate_factor.py:\d+: policy .* does not read the rate of the attached"):
        run.steps(1)


def test_several_optimizers_are_refused():
    model, optimizers = linear_model(), [keras.optimizers.SGD(1.0), keras.optimizers.SGD(1.0)]
    for one in optimizers:
        one.build(model.trainable_variables)
    with pytest.raises(UsageError, match="2 optimizers are attached"):
        kf.attach(model, optimizers, policies=[kf.Policy("of_step", of_step)])


def test_a_rate_set_as_a_value_is_told_how_to_be_set():
    run = linear_run(policies=[kf.Policy("named", lambda training: kf.control.every(2).set("learning_rate", 0.5))])
    with pytest.raises(PolicyError, match=r"sets 'learning_rate': no shared number.*write set_learning_rate\(\), or"):
        run.steps(1)
