"""What attach takes and what it refuses; and what runs beside the thread that trains."""

from __future__ import annotations

from dataclasses import replace
from queue import Queue

import keras
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.compiler import compile_policies
from kungfu.errors import PolicyError, UsageError
from kungfu.event_log.events import LateEvent
from kungfu.policies import schedule, stop_on_nan
from kungfu.runtime.agent.supervisor import script_runner
from kungfu.runtime.api import StandaloneMembership
from kungfu.runtime.attachment.protocol import LateRanks
from kungfu.runtime.settings import Deadlines, Limits, Settings
from kungfu.training.loop.attach import attach_built, deciding_rules, policies_in_job
from kungfu.training.loop.job_connection import JobConnection, watch_late_peers, write_profiler_trace
from tests.training.linear import linear_model


def test_several_models_are_refused_with_what_makes_one_of_them():
    generator, discriminator = linear_model(), linear_model()
    with pytest.raises(
        UsageError, match=r"was given 2 models in a list: it takes one.*all = keras.Model\(\); all.parts = \[a, b\]"
    ):
        kf.attach([generator, discriminator], keras.optimizers.SGD())
    one = keras.Model()
    one.parts = [generator, discriminator]
    one.built = True
    assert kf.attach(one, [built_for(generator), built_for(discriminator)]).size == 1
    assert [id(weight) for weight in one.weights] == [id(part.weights[0]) for part in (generator, discriminator)]


def test_fit_on_an_attached_model_is_refused_until_its_training_is_over(capsys):
    model = linear_model()
    training = kf.attach(model, keras.optimizers.SGD(0.1))
    with pytest.raises(UsageError, match=r"was called on the model that kf\.attach"):
        script_runner._check(model)
    training.finish()
    script_runner._check(model)  # what a peer does with it afterwards is its own affair
    assert capsys.readouterr().err == ""


def test_the_rules_that_may_decide_a_change_are_named_as_decisions_name_them():
    @kf.policy
    def mine(training):
        grow = kf.control.every(2).rescale(3)
        return grow, kf.control.every(5).set_learning_rate(0.1), kf.control.every(7).call(lambda control: None)

    plan = compile_policies([mine(), stop_on_nan()])
    assert deciding_rules(plan) == [plan.rules[0].name, plan.rules[2].name]


def built_for(model):
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    return optimizer


class Pair(keras.Model):
    """A model that was never called, of a layer with weights."""

    def __init__(self):
        super().__init__(name="pair")
        self.one = linear_model()


def built_and_later():
    model = linear_model()
    return model, [built_for(model), keras.optimizers.SGD(name="later")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: (keras.Sequential([keras.layers.Dense(1)], name="unborn"), keras.optimizers.SGD()), "'unborn'"),
        (lambda: (Pair(), keras.optimizers.SGD()), "'pair', whose layers have 1 weights, but which was never called"),
        (built_and_later, r"of 2 optimizers \['later'\]"),
        (lambda: (keras.optimizers.SGD(), linear_model()), "was given SGD as its model.* the optimizer second"),
        (lambda: (tf.Module(), keras.optimizers.SGD()), "was given Module as its model"),
        (lambda: (linear_model(), "adam"), "was given str after the model: it takes a Keras optimizer"),
        (lambda: (linear_model(), []), "was given no optimizer after the model"),
    ],
    ids=["no weights", "never called", "not built", "swapped", "module", "name", "none"],
)
def test_what_is_no_model_or_no_optimizer_is_told_as_what_it_is(given, message):
    with pytest.raises(UsageError, match=message):
        kf.attach(*given())


def test_one_optimizer_is_built_for_the_model():
    optimizer = keras.optimizers.SGD(momentum=0.5)
    kf.attach(linear_model(), optimizer)
    assert optimizer.built


@kf.policy
def local(training):
    return kf.control.always().rescale(training.loss)


@pytest.mark.parametrize(
    ("policies", "message"), [([schedule({1: 2}), schedule({2: 3})], "at_most"), ([local()], "all_reduce")]
)
def test_policies_that_cannot_be_compiled_are_refused_with_the_way_out(policies, message):
    with pytest.raises(PolicyError, match=message):
        kf.attach(linear_model(), keras.optimizers.SGD(), policies=policies)


def test_what_is_no_list_of_policies_is_refused_with_the_line():
    for given in ([schedule], schedule({1: 2}), "schedule({1: 2})", kf.control.every(5).rescale(2)):
        with pytest.raises(PolicyError, match=r"policies must be a list, and .* was given \(.*test_attach\.py:\d+\)"):
            kf.attach(linear_model(), keras.optimizers.SGD(), policies=given)


def test_the_policies_of_the_command_line_are_all_beside_those_of_the_program():
    settings = Settings("job", 0, "127.0.0.1:1", "ab" * 32, "local", Limits(1, 4), Deadlines())
    specs = ("schedule({1: 2})", "linear_scaling(over_steps=3)")
    found = policies_in_job([stop_on_nan()], replace(settings, policies=specs))
    assert [one.name for one in found] == ["stop_on_nan", "schedule", "linear_scaling"]
    assert found[1].location == "kungfu-run --policy 'schedule({1: 2})'"


def test_a_tensorflow_with_one_thread_between_ops_is_refused(monkeypatch):
    """TensorFlow asks the environment for its threads when it first runs an op, and kungfu asks when it attaches."""
    model, optimizer = linear_model(), keras.optimizers.SGD()
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    with pytest.raises(UsageError, match=r"^TensorFlow has 1 thread between ops"):
        kf.attach(model, optimizer)
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    kf.attach(model, optimizer)


def test_statistics_over_the_peers_are_refused_in_a_job_with_the_way_out():
    """They would be those of each peer's slice all the same; alone there are no peers."""

    def model():
        normalised = keras.layers.BatchNormalization(synchronized=True, name="normalised")
        return keras.Sequential([keras.Input((2,)), keras.Sequential([normalised]), keras.layers.Dense(1)])

    settings = Settings("job", 0, "127.0.0.1:1", "ab" * 32, "local", Limits(1, 1), Deadlines())
    connection, one = JobConnection(settings), model()
    with pytest.raises(
        UsageError, match=r"'normalised' is BatchNormalization\(synchronized=True\).*GroupNormalization"
    ):
        attach_built(connection, one, [built_for(one)], policies=(), seed=0, budget=None, combine={})
    assert kf.attach(model(), keras.optimizers.SGD()).size == 1


@pytest.mark.parametrize(("recording", "is_recorded"), [("steps", True), ("nothing", False)])
def test_a_peer_records_its_steps_unless_the_job_has_no_trace(recording, is_recorded):
    """Without the lines there is no replay; with ``--trace-limit 0`` no step should pay for lines that none reads."""
    given = Settings("job", 0, "127.0.0.1:1", "ab" * 32, "solo", Limits(1, 1), Deadlines(), recording=recording)
    connection, one = JobConnection(given), linear_model()
    connection.membership = StandaloneMembership()
    calls = attach_built(connection, one, [built_for(one)], policies=(), seed=0, budget=None, combine={})
    assert (calls.run.recorder is not None) is is_recorded


# ---- beside the thread that trains: a wait that lasts is reported, and the process is profiled -----------------------


def test_who_is_late_is_told_once_with_the_steps_done() -> None:
    found: Queue[LateRanks | None] = Queue()
    reported: Queue[LateEvent] = Queue()
    found.put(LateRanks((1, 3), 15.0004, "gradients"))
    stop = watch_late_peers(lambda: None if found.empty() else found.get(), reported.put, steps=lambda: 811)
    event = reported.get(timeout=180.0)
    stop()
    assert event == LateEvent(ranks=(1, 3), where="gradients", step=811, waited_s=15.0)
    assert reported.empty()


def test_after_its_end_nobody_looks() -> None:
    looks: Queue[None] = Queue()
    watch_late_peers(lambda: looks.put(None), lambda event: None, steps=lambda: 0)()
    assert looks.empty()


@pytest.mark.slow
def test_a_trace_is_written_and_what_is_in_its_way_is_said(tmp_path):
    assert write_profiler_trace(0.01, str(tmp_path / "new" / "trace")) == ""
    assert list((tmp_path / "new" / "trace").rglob("*.xplane.pb"))
    (tmp_path / "file").write_text("no folder")
    assert "File exists" in write_profiler_trace(0.01, str(tmp_path / "file"))
    tf.profiler.experimental.start(str(tmp_path / "own"))
    assert "profil" in write_profiler_trace(0.01, str(tmp_path / "other")).lower(), "the program traces itself"
    tf.profiler.experimental.stop(save=False)
