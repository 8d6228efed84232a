"""Actions beside the size, carried out: the batch, the learning rate, the end of training, shadows and notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from msgspec import to_builtins

from kungfu import control, policy
from kungfu.errors import PolicyError
from kungfu.ops import where as kf_where
from kungfu.policy_definition import shadow
from kungfu.runtime.api import StandaloneMembership
from kungfu.training.loop.barrier import hold
from tests.training.linear import linear_run, points


def run_with(rule: Any, **given: Any) -> Any:
    """A run alone whose only rule is what ``rule(training)`` gives; its records are kept in ``events``."""
    made = policy(lambda training: rule(training))()
    events: list[dict[str, Any]] = []

    def record(stream: str, fields: Any) -> None:
        told = fields() if callable(fields) else to_builtins(fields)
        lines = told if stream == "step" else {stream: told}
        events.extend(dict(line, stream=name) for name, line in lines.items())

    membership: Any = StandaloneMembership()
    membership.record = record
    policies = [given.pop("around", lambda one: one)(made)]
    return linear_run(*given.pop("layers", ()), policies=policies, membership=membership, **given), events


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The events of a kind."""
    return [event for event in events if event.get("event") == kind]


def batches_of(run: Any, *, samples: int, batch_size: int, epochs: int) -> list[int]:
    """The sizes of the batches that were trained on."""
    batches = run.training.batches(points(samples), batch_size=batch_size, epochs=epochs, seed=0)
    return [len(x) for x in batches if run.step(x) is not run.training.SKIPPED]


def rates(run: Any, *, steps: int) -> list[float]:
    """The learning rate of every step, as the update saw it: the gradient of the linear model is [1, 1]."""
    found = []
    for _ in range(steps):
        before = run.weights.copy()
        run.step(np.ones([2, 2], np.float32))
        found.append(float((before - run.weights)[0]))
    return found


@pytest.mark.parametrize(
    ("after", "every", "asked", "given", "taken"),
    [
        (0, 3, 7, {"samples": 40, "batch_size": 4, "epochs": 1}, [4] * 4 + [7, 7, 7, 3]),
        (1, 1, 1000, {"samples": 10, "batch_size": 2, "epochs": 2}, [2, 2, 2, 4, 10]),  # never beyond an epoch
    ],
)
def test_a_global_batch_size_that_a_rule_sets_is_what_the_next_steps_take(after, every, asked, given, taken):
    run, events = run_with(lambda training: control.every(every).after(after).set_global_batch_size(asked))
    assert batches_of(run, **given) == taken
    assert [event["to"] for event in of_kind(events, "set")] == [float(max(taken))]


def test_a_learning_rate_moves_on_a_line_and_ends_where_the_ramp_ends():
    run, _ = run_with(lambda training: control.every(2).until(training.step > 2).set_learning_rate(2.0, over_steps=4))
    np.testing.assert_allclose(rates(run, steps=9), [1, 1, 1, 1, 1.25, 1.5, 1.75, 2, 2], rtol=1e-6)


def test_a_schedule_of_the_users_goes_on_under_the_factor_that_a_rule_sets():
    halving = keras.optimizers.schedules.ExponentialDecay(1.0, decay_steps=1, decay_rate=0.5)
    run, _ = run_with(
        lambda training: control.every(2).until(training.step > 2).set_learning_rate(training.learning_rate * 4),
        optimizer=keras.optimizers.SGD(halving),
    )
    # Fired in step 2 at a rate of 1/2: wanted is 2, when the barrier after step 3 finds the schedule at 1/8.
    np.testing.assert_allclose(rates(run, steps=5), [1, 0.5, 0.25, 2, 1], rtol=1e-6)


def test_a_callback_may_move_a_rate_on_once_its_ramp_is_over():
    run, _ = run_with(lambda training: control.every(1).until(training.step > 1).set_learning_rate(3.0))
    assert rates(run, steps=3) == pytest.approx([1, 1, 3])
    run.optimizer.learning_rate = 0.5
    assert rates(run, steps=2) == pytest.approx([0.5, 0.5])


def test_a_rule_that_stops_ends_the_loop_in_good_order():
    run, events = run_with(lambda training: control.every(3).stop())
    steps = [run.step(x) for x in run.training.batches(points(40), batch_size=4, epochs=9, seed=0)]
    assert len(steps) == 4
    assert run.training.stopped
    assert [event["what"] for event in of_kind(events, "set")] == ["stop"]


def test_a_policy_in_the_shadow_is_told_of_and_not_acted_on():
    run, events = run_with(lambda training: control.every(2).set_global_batch_size(8), around=shadow)
    taken = batches_of(run, samples=24, batch_size=4, epochs=1)
    assert taken == [4] * 6
    told = [(event["step"], event["asked"]) for event in of_kind(events, "shadow")]
    assert told == [(2, 8.0)]


def test_the_newest_requests_of_a_shadow_go_to_the_next_barrier():
    run, _ = run_with(lambda training: control.every(2).checkpoint(), around=shadow)
    record, shadows = run.training._run, run.training._run.pending.shadows
    run.steps(40)
    assert [one.step for one in shadows] == [*range(10, 41, 2)]
    assert {one.rule for one in shadows} == {record.plan.rules[0].name}
    hold(record)
    assert not shadows


def test_a_checkpoint_that_a_rule_asks_for_is_told_when_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, events = run_with(lambda training: control.every(2).checkpoint())
    run.steps(4)
    run.training.finish()
    told = of_kind(events, "checkpoint")
    assert [event["step"] for event in told] == [3, 4]
    for event in told:
        path = Path(event["path"])
        assert path.parent == tmp_path / "checkpoints"
        assert event["bytes"] == sum(file.stat().st_size for file in path.iterdir())


def test_a_hook_of_the_last_step_is_called_and_may_set_a_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen, held = [], {"best": 0}

    def hook(control, step):
        seen.append(step)
        control.rescale(3)
        control.set_global_batch_size(8)
        control.set_value("best", step)
        control.checkpoint()

    run, events = run_with(lambda training: control.every(2).call(hook, training.step))
    run.training.register("best", lambda: held["best"], lambda value: held.update(best=value))
    run.steps(4)
    assert seen == [2]
    run.training.finish()
    run.training.finish()
    assert seen == [2, 4], "that of the last step was called once, at the end"
    assert held == {"best": 4}
    assert [event["step"] for event in of_kind(events, "checkpoint")] == [3, 4]
    told = of_kind(events, "called")
    values = ["set_value('best', 2)", "set_value('best', 4)"]
    assert [event["also"] for event in told] == [
        ("set_global_batch_size(8)", values[0], "checkpoint()"),
        (values[1], "checkpoint()"),
    ]
    assert [event.get("ignored", "") for event in told] == ["", "training is over"]


def test_an_array_that_a_hook_has_set_is_the_jobs_and_no_longer_the_programs():
    own, held = np.array([1.0, 2.0]), {"teacher": np.zeros(2)}

    def hook(control):
        control.set_value("teacher", own)
        control.set_value("variable", own.astype(np.float32))

    variable = tf.Variable([0.0, 0.0])
    run, _ = run_with(lambda training: control.every(2).call(hook))
    run.training.register("teacher", lambda: held["teacher"], lambda value: held.update(teacher=value))
    run.training.register("variable", variable)
    run.steps(3)
    own[:] = -1.0  # before the step that takes it
    run.step(points(2))
    assert held["teacher"].tolist() == variable.numpy().tolist() == [1.0, 2.0]
    own[:] = -2.0
    assert held["teacher"].tolist() == [1.0, 2.0]


# ---- what hooks and the record are told -----------------------------------------------------------------------------

FAR = 2_560_000_001  # samples: float32 knows the one before it only


def test_a_hook_and_the_record_are_told_whole_numbers_with_all_their_digits():
    told = []

    def hook(control, samples, loss, size):
        told.append((samples, loss, size))

    def rule(training):
        done = (training.samples_done + 0).named("done")
        return control.every(1).call(hook, training.samples_done, training.mean_loss, done)

    run, events = run_with(rule)
    progress = run.training._run.graph_state.progress
    run.step(points(2))
    progress.trained.assign(FAR)
    run.step(points(2))  # its rule is held: the one before it is still to be served
    run.steps(2)
    (_, (samples, loss, done)) = told
    assert (samples, done) == (FAR + 2, FAR + 2)
    assert [type(one) for one in (samples, loss, done)] == [int, float, int]
    called = of_kind(events, "called")[-1]
    assert called["saw"]["samples_done"] == called["saw"]["done"] == FAR + 2
    metrics = [event for event in events if event["stream"] == "metrics"]
    assert [one["done"] for one in metrics] == [0, FAR, FAR + 2, FAR + 4]


def test_a_hook_that_asks_for_no_number_is_told_of_and_ends_nothing():
    def hook(control):
        control.rescale(float("nan"))

    run, events = run_with(lambda training: control.every(2).call(hook))
    run.steps(4)
    told = [(event["asked"], event["ignored"]) for event in of_kind(events, "called")]
    assert told == [(None, "rescale(nan) asks for nothing")]


# ---- values that rules set -------------------------------------------------------------------------------------------


def by_steps(training: Any) -> Any:
    """A quarter in step 2, 0.9 in step 4."""
    return kf_where(training.step > 2, 0.9, 0.25)


def test_a_momentum_that_a_rule_sets_is_that_of_the_next_steps_of_the_same_trace():
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    run, events = run_with(lambda training: control.every(2).set("momentum", by_steps(training)), optimizer=optimizer)
    expected, velocity = [], 0.0
    for momentum in (0.5, 0.5, 0.5, 0.25, 0.25, 0.9, 0.9, 0.9, 0.9):
        velocity = momentum * velocity + 1.0
        expected.append(velocity)
    np.testing.assert_allclose(rates(run, steps=9), expected, rtol=1e-6)
    told = [(event["step"], event["what"], event["to"]) for event in of_kind(events, "set")]
    assert told == [(2, "value of momentum", 0.25), (4, "value of momentum", pytest.approx(0.9))]
    assert run.training.traces() == 1
    assert run.optimizer.get_config()["momentum"] == 0.5, "the config is that of the program"


def test_a_weight_decay_that_a_rule_sets_is_that_of_the_next_steps():
    optimizer = keras.optimizers.SGD(1.0, weight_decay=0.0)
    run, _ = run_with(lambda training: control.every(2).until(training.step > 2).set("weight_decay", 0.5),
                      optimizer=optimizer)  # fmt: skip
    weight, expected = 0.0, []
    for decay in (0.0, 0.0, 0.0, 0.5, 0.5):
        expected.append(decay * weight + 1.0)
        weight -= expected[-1]
    np.testing.assert_allclose(rates(run, steps=5), expected, rtol=1e-6)


def test_values_of_the_program_are_set_as_what_they_are():
    held, seen = {"patience": 3}, tf.Variable(0, dtype=tf.int64)
    rules = {"patience": 7.6, "seen": 4.4, "heat": 0.5}
    run, _ = run_with(lambda training: tuple(control.every(2).set(*one) for one in rules.items()))
    heat = tf.Variable(1.0)
    run.training.register("patience", lambda: held["patience"], lambda value: held.update(patience=value))
    run.training.register("seen", seen)
    run.training.register("heat", heat)
    run.steps(3)
    assert held["patience"] == 3
    run.steps(1)
    assert (held["patience"], type(held["patience"]), int(seen), float(heat)) == (8, int, 4, 0.5)
    heat.assign(2.0)
    run.steps(3)
    assert float(heat) == 2.0, "the program may change it, and the rule asks for nothing new"


def test_a_momentum_goes_into_a_checkpoint_and_comes_out_of_it(tmp_path):
    def made() -> Any:
        optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
        return run_with(lambda training: control.every(2).set("momentum", 0.25), optimizer=optimizer)[0]

    run = made()
    run.steps(5)
    run.training.checkpoint(str(tmp_path))
    run.steps(1)
    run.training.finish()
    velocity = float(np.asarray(run.optimizer.momentums[0])[0, 0])
    again = made()
    assert again.training.resume(str(tmp_path))
    np.testing.assert_allclose(rates(again, steps=2), [1 - velocity / 4, 1 + (1 - velocity / 4) / 4], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "optimizer", "message"),
    [
        ("momentum", keras.optimizers.SGD(1.0), r"sets 'momentum': SGD has momentum=0.0; give SGD\(momentum=...\)"),
        ("weight_decay", keras.optimizers.SGD(1.0), r"SGD has weight_decay=None; give SGD\(weight_decay=...\) a first"),
        ("momentum", keras.optimizers.Adam(1.0), "Adam has momentum=None"),
        ("heat", None, r"test_settings.py:\d+: policy .* sets 'heat': no shared number of that name is registered"),
        ("words", None, r"sets 'words': no shared number .*there are 'words'\)"),
    ],
)
def test_a_value_that_nothing_has_is_refused_with_the_rule(name, optimizer, message):
    def begun():
        run, _ = run_with(lambda training: control.every(2).set(name, 0.5), optimizer=optimizer)
        run.training.register("words", lambda: "some", lambda value: None)
        run.steps(1)

    with pytest.raises(PolicyError, match=message):
        begun()


def test_a_hyperparameter_that_the_step_does_not_read_is_refused():
    class Deaf(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign_sub(variable, gradient * float(self.momentum))

    optimizer = Deaf(1.0, momentum=0.5)
    run, _ = run_with(lambda training: control.every(2).set("momentum", 0.25), optimizer=optimizer)
    with pytest.raises(PolicyError, match="does not read the optimizer's momentum"):
        run.steps(1)
