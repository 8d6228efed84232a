"""The record of a step: every number of a step in one row, those that follow from others as the graph has them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kungfu import control, ops, policy
from kungfu.compiler import Outcome, compile_policies
from kungfu.policies import gns_batch, replace_stragglers
from kungfu.policy_definition import Policy
from kungfu.signal import SCALAR, SOURCES
from kungfu.signal.sources import ONLY_AT_RESCALE
from kungfu.training.graph import step_record
from kungfu.training.graph.graph_state import ProgressVariables
from kungfu.training.graph.step_record import (
    DERIVED_SOURCES,
    MessageNumbers,
    given_numbers,
    make_step_record,
    pack_scalars,
)
from tests.training.linear import linear_run, numbers_of, points

PLAN = compile_policies([gns_batch(max_peers=4)])


def offered():
    """A value for every source, that tells it from all others."""
    scalars = {name: kind for name, kind in SOURCES.items() if kind.type.shape == SCALAR}
    values = {name: tf.cast(index + 1, kind.type.dtype) for index, (name, kind) in enumerate(sorted(scalars.items()))}
    return values | {"norm_squared(grads)": tf.constant(0.5), "norm_squared(mean_grads)": tf.constant(-np.inf)}


def third_step(**numbers):
    """Numbers of a third step of two peers, from which others follow."""
    third = {
        "steps": 2, "size": 2, "batch": 9, "replacement_refused": 1, "exchanged": 0, "target_size": 0, "trained": 18,
        "epoch_samples": 64, "epoch": 0, "offset": 18, "epochs": 3, "drops": 0, "now": 12.5, "began": 10.0,
        "header": np.array([8.0, 4.0, 2.0, 0.0], np.float32),
    }  # fmt: skip
    as_variables = {"steps", "trained"}  # of which some are, and some are tensors
    values = {name: tf.convert_to_tensor(one) for name, one in (third | numbers).items()}
    return MessageNumbers(**{name: tf.Variable(one) if name in as_variables else one for name, one in values.items()})


def outcome_of(plan, record, **known):
    """An outcome of a plan's rules: zeros but for what is ``known``."""
    rules, logged = len(plan.rules), [one for rule in plan.rules for one in rule.inputs.values()]
    whole, nothing = sum(one.type.dtype == "int64" for one in logged), tf.zeros([0, 1])
    watched_whole = sum(one.group == "watched_whole" for one in record.columns)
    zeros = Outcome(
        tf.zeros([rules], tf.bool), tf.zeros([rules]), tf.cast(nothing, tf.bool), tf.zeros([len(logged)]),
        tf.zeros([len(plan.watched_signals)]), tf.zeros([whole], tf.int64), tf.zeros([watched_whole], tf.int64),
        nothing,
    )  # fmt: skip
    return zeros._replace(**known)


OF_THE_STEP = {"seconds": tf.constant(0.25)}
FOLLOWS = {
    "step": 3, "local_batch_size": 4.5, "global_batch_size": 9, "job_samples": 192, "clock_seconds": 2.5,
    "replacement_refused": 1, "replacing": 0, "mean_loss": 0.5, "total_samples": 8, "pending": 0, "barrier_due": 1,
    "change_due": 0, "target_size": 0,
}  # fmt: skip


def test_a_record_of_averages_has_the_steps_of_each_window_with_and_without_rules():
    reading = Policy("reading", lambda training: control.every(4).rescale(2))
    for policies in ([], [reading]):
        plan = compile_policies(policies, sync=control.average_models(every=3))
        names = [one.name for one in make_step_record(plan, averages_models=True).columns]
        assert names.count("steps_since_average") == 1
    record, sources = make_step_record(PLAN, averages_models=True), offered() | {"steps_since_average": tf.constant(3)}
    record.write(third_step(), OF_THE_STEP, sources, outcome_of(PLAN, record))
    assert record.metrics(record.packed.numpy().tolist())["steps_since_average"] == 3


def test_a_row_holds_every_number_in_the_place_that_the_columns_say():
    record, sources = make_step_record(PLAN), offered()
    known = {"fired": [True, False], "targets": [4.0, np.nan], "watched": [7.0, 3.0]}
    outcome = outcome_of(PLAN, record, **{name: tf.constant(one) for name, one in known.items()})
    numbers = third_step()
    tf.function(lambda: record.write(numbers, OF_THE_STEP, sources, outcome))()
    packed = record.packed.numpy().tolist()
    row = {(one.group, one.name): value for one, value in zip(record.columns, record.row(packed), strict=True)}
    assert row["step", "seconds"] == 0.25
    assert (row["fired", "gns_batch"], row["targets", "gns_batch"], row["watched", "noise_scale"]) == (1, 4, 7)
    assert (row["fired", "held(gns_batch)"], row["watched", "rescales_left"]) == (0, 3)
    assert record.fired(packed) == {"gns_batch"}
    assert (record.step(packed), record.loss(packed), record.samples_trained(packed)) == (3, 0.5, 26)
    for name, value in sources.items():
        is_local = name == "norm_squared(grads)" or SOURCES.get(name, SOURCES["size"]).placement == "local"
        if name not in ONLY_AT_RESCALE:
            assert row["local" if is_local else "agreed", name] == FOLLOWS.get(name, float(value)), name
    assert FOLLOWS.keys() == DERIVED_SOURCES.keys()


def test_whole_numbers_beyond_float32_stay_whole():
    plan, large = compile_policies([]), tf.constant(2**40 + 1, tf.int64)
    record, sources = make_step_record(plan), offered() | {"samples_done": large}
    record.write(third_step(trained=large), OF_THE_STEP, sources, outcome_of(plan, record))
    names, packed = [one.name for one in record.columns], record.packed.numpy().tolist()
    assert record.row(packed)[names.index("samples_done")] == 2**40 + 1
    assert record.samples_trained(packed) == 2**40 + 9


def test_the_metrics_of_a_step_are_read_off_it():
    run = linear_run(policies=[gns_batch(max_peers=4)])
    for batch in run.training.batches(points(6), batch_size=4, epochs=2, seed=0):
        run.step(batch)
    record = run.training._run.graph_state.metrics.step_record
    metrics = record.metrics(record.packed.numpy().tolist())
    assert [metrics[name] for name in ("step", "view", "epoch", "size", "batch")] == [
        4,
        record.view(record.packed.numpy()),
        1,
        1,
        2,
    ]
    assert "noise_scale" in metrics
    assert metrics["learning_rate"] == pytest.approx(float(run.optimizer.learning_rate))
    assert list(record.metrics(record.packed.numpy().tolist()))[8:] == ["noise_scale", "rescales_left"]


@pytest.fixture(params=["native", "op by op"])
def way(request, monkeypatch):
    if request.param == "op by op":
        monkeypatch.setattr(step_record, "is_available", lambda: False)
    return request.param


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_every_number_stands_in_its_place_and_keeps_its_value(way, graph):
    count, speed = tf.Variable(2**40 + 1, dtype=tf.int64), tf.Variable(np.float32(0.1))
    flags = tf.Variable([True, False])

    def made():
        return pack_scalars([tf.constant(-3), count, tf.constant([np.nan, -np.inf]), flags, tf.zeros([0]), speed, True])

    found = (tf.function(made) if graph else made)().numpy()
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [-3, 2**40 + 1, np.nan, -np.inf, 1, 0, np.float64(np.float32(0.1)), 1])


def test_a_variable_gives_what_it_holds_at_this_point_of_the_graph(way):
    number = tf.Variable(1.0)

    @tf.function
    def three():
        before = pack_scalars([number])
        number.assign(2.0)
        behind = pack_scalars([number])
        number.assign_add(3.0)
        return before, behind, pack_scalars([number, number])

    assert [one.numpy().tolist() for one in three()] == [[1.0], [2.0], [5.0, 5.0]]
    assert three.get_concrete_function().variables[0] is number


def test_a_variable_that_was_sized_anew_gives_all_its_entries(way):
    flags = tf.Variable(tf.zeros([0], tf.bool), shape=[None])
    gather = tf.function(lambda: pack_scalars([flags, tf.constant(7, tf.int64)]))
    assert gather().numpy().tolist() == [7]
    flags.assign([True, True, False])
    assert gather().numpy().tolist() == [1, 1, 0, 7]


def test_what_is_no_number_is_refused():
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError, ValueError)):
        pack_scalars([tf.Variable("three")])


def test_the_speeds_of_the_peers_follow_the_columns_and_are_told_by_id():
    plan = compile_policies([replace_stragglers()])
    record = make_step_record(plan)

    def written(*fractions: float) -> np.ndarray:
        masks = tf.zeros([len(plan.rules), len(fractions)], tf.bool)
        outcome = outcome_of(plan, record, masks=masks, fractions=tf.constant([fractions]))
        record.write(third_step(), OF_THE_STEP, offered(), outcome)
        return record.packed.numpy().tolist()

    nothing = record.packed.numpy().tolist()
    assert record.straggler_fractions(nothing) == [], "before the first step nothing is known"
    packed = written(1.0, 0.5, 1.25)
    assert record.straggler_fractions(packed) == record.row(packed)[-3:] == [1.0, 0.5, 1.25]
    assert record.metrics(packed, peers=(0, 7, 9))["straggler_fractions"] == {"0": 1.0, "7": 0.5, "9": 1.25}
    assert record.view(packed) == int(offered()["view"])
    # Those of the view are not known any more, or are others.
    assert "straggler_fractions" not in record.metrics(packed)
    assert "straggler_fractions" not in record.metrics(packed, peers=(0, 7))
    assert record.straggler_fractions(written(1.0, 1.0)) == [1.0, 1.0], "the view is smaller by now"


def test_without_a_policy_that_measures_it_no_speed_is_told():
    record = make_step_record(PLAN)
    packed = record.packed.numpy().tolist()
    assert record.packed.shape.is_fully_defined()
    assert (len(record.row(packed)), record.straggler_fractions(packed)) == (len(record.columns), [])


# ---- sources that follow from others ---------------------------------------------------------------------------------

NOTHING = MessageNumbers(*[0.0] * 14, header=[0.0] * 4)


def job_samples_in_graph(given: MessageNumbers) -> int:
    values = {
        "step": given.steps, "epoch": given.epoch, "offset": given.offset, "samples": given.epoch_samples, "batch": 1,
        "trained": given.trained, "epochs": given.epochs, "drops": given.drops,
    }  # fmt: skip
    progress = ProgressVariables(**{name: tf.Variable(int(one), dtype=tf.int64) for name, one in values.items()})
    return int(progress.job_samples(tf.constant(int(given.batch), tf.int64)))


@given(
    st.integers(0, 2**40), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 7), st.integers(0, 7),
    st.integers(0, 300), st.booleans(),
)  # fmt: skip
def test_the_samples_of_the_job_are_those_of_the_graph(trained, samples, offset, epoch, epochs, batch, drops):
    given = NOTHING._replace(
        batch=float(batch), trained=float(trained), epoch_samples=float(samples), epoch=float(epoch),
        offset=float(min(offset, samples)), epochs=float(epochs), drops=float(drops),
    )  # fmt: skip
    assert DERIVED_SOURCES["job_samples"](given) == job_samples_in_graph(given)
    assert given_numbers([*given[:-1], *given.header, 7.0, 8.0]) == given


@given(st.integers(1, 2**24), st.integers(1, 1000))
def test_the_batch_of_a_peer_is_rounded_as_in_the_graph(batch, size):
    given = NOTHING._replace(size=float(size), batch=float(batch))
    assert DERIVED_SOURCES["local_batch_size"](given) == float(np.float32(batch) / np.float32(size))


def test_where_nobody_had_samples_there_is_no_loss():
    assert np.isnan(DERIVED_SOURCES["mean_loss"](NOTHING))


@pytest.mark.parametrize("remainder", ["keep", "drop"])
def test_a_rule_sees_what_the_record_says(remainder):
    seen: list[list[float]] = []
    names = list(DERIVED_SOURCES)

    def look(control, *values):
        seen.append([float(value) for value in values])
        if len(seen) == 4:
            control.set_global_batch_size(3)

    def watched(training):
        own = {"clock_seconds": ops.all_reduce(training.clock_seconds, "mean")}
        return control.always().call(look, *(own.get(name, getattr(training, name)) for name in names))

    run = linear_run(policies=[policy(watched)()])
    recorded = []
    for batch in run.training.batches(points(18), batch_size=4, epochs=3, seed=0, remainder=remainder):
        run.step(batch)
        numbers = {name: value for (_, name), value in numbers_of(run.training._run.graph_state).items()}
        recorded.append([numbers[name] for name in names])
    assert len(seen) > 6
    steps = [int(one[names.index("step")]) for one in seen]
    assert seen == [recorded[step - 1] for step in steps]
    batches = {one[names.index("global_batch_size")] for one in recorded}
    assert batches == {4.0, 3.0}
