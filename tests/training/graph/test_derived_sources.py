"""Sources that follow from others: worked out by the host as the graph works them out, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kungfu import control, ops, policy
from kungfu.training.graph.derived_sources import DERIVED_SOURCES, MessageNumbers, given_numbers
from kungfu.training.graph.graph_state import ProgressVariables
from tests.training.linear import linear_run, numbers_of, points

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
    given = MessageNumbers(
        steps=3.0, size=2.0, batch=float(batch), replacement_refused=0.0, exchanged=0.0, target_size=0.0,
        trained=float(trained), epoch_samples=float(samples), epoch=float(epoch), offset=float(min(offset, samples)),
        epochs=float(epochs), drops=float(drops), now=0.0, began=0.0, header=NOTHING.header,
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
    told = []
    for batch in run.training.batches(points(18), batch_size=4, epochs=3, seed=0, remainder=remainder):
        run.step(batch)
        numbers = {name: value for (_, name), value in numbers_of(run.training._run.graph_state).items()}
        told.append([numbers[name] for name in names])
    assert len(seen) > 6
    steps = [int(one[names.index("step")]) for one in seen]
    assert seen == [told[step - 1] for step in steps]
    batches = {one[names.index("global_batch_size")] for one in told}
    assert batches == {4.0, 3.0}
