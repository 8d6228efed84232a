"""The tape: every number of a step in one row."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from kungfu.compiler import Outcome, compile_policies
from kungfu.policies import gns_batch
from kungfu.signal import SCALAR, SOURCES
from kungfu.signal.sources import ONLY_AT_RESCALE
from kungfu.training.graph.tape import make_tape
from tests.training.linear import linear_run, points

PLAN = compile_policies([gns_batch(max_peers=4)])


def offered():
    """A value for every source, that tells it from all others."""
    makers = {"float32": tf.float32, "int64": tf.int64, "bool": tf.bool}
    scalars = {name: kind for name, kind in SOURCES.items() if kind.type.shape == SCALAR}
    values = {
        name: tf.cast(index + 1, makers[kind.type.dtype]) for index, (name, kind) in enumerate(sorted(scalars.items()))
    }
    return values | {"norm_squared(grads)": tf.constant(0.5), "norm_squared(mean_grads)": tf.constant(-np.inf)}


def test_a_row_holds_every_number_in_the_place_that_the_columns_say():
    tape, sources = make_tape(PLAN), offered()
    of_the_step = {"epoch": tf.constant(2, tf.int64), "seconds": tf.constant(0.25)}
    outcome = Outcome(
        tf.constant([True]),
        tf.constant([4.0]),
        tf.zeros([0, 1], tf.bool),
        tf.zeros([3]),
        tf.constant([7.0]),
        tf.zeros([1], tf.int64),
        tf.zeros([0], tf.int64),
    )
    tf.function(lambda: tape.write(of_the_step, sources, outcome))()
    told = {(one.group, one.name): value for one, value in zip(tape.columns, tape.row.numpy().tolist(), strict=True)}
    assert (told["step", "epoch"], told["step", "seconds"]) == (2, 0.25)
    assert (told["fired", "gns_batch"], told["targets", "gns_batch"], told["watched", "noise_scale"]) == (1, 4, 7)
    assert tape.fired(tape.row.numpy()) == {"gns_batch"}
    for name, value in sources.items():
        group = (
            "local"
            if name == "norm_squared(grads)" or SOURCES.get(name, SOURCES["size"]).placement == "local"
            else "agreed"
        )
        if name not in ONLY_AT_RESCALE:
            assert told[group, name] == float(value), name


def test_whole_numbers_beyond_float32_stay_whole():
    tape = make_tape(compile_policies([]))
    sources = offered() | {"samples_done": tf.constant(2**40 + 1, tf.int64)}
    of_the_step = {"epoch": tf.constant(0, tf.int64), "seconds": tf.constant(1.0)}
    none = [tf.zeros([0], tf.bool), tf.zeros([0]), tf.zeros([0, 1], tf.bool), tf.zeros([0]), tf.zeros([0])]
    none += [tf.zeros([0], tf.int64)] * 2
    tape.write(of_the_step, sources, Outcome(*none))
    names = [one.name for one in tape.columns]
    assert tape.row.numpy()[names.index("samples_done")] == 2**40 + 1


def test_the_figures_of_a_step_are_read_off_it():
    run = linear_run(policies=[gns_batch(max_peers=4)])
    for batch in run.training.batches(points(6), batch_size=4, epochs=2, seed=0):
        run.step(batch)
    tape = run.training._averaging.ledger.figures.tape
    figures = tape.figures(tape.row.numpy())
    assert (figures["step"], figures["epoch"], figures["size"], figures["batch"]) == (4, 1, 1, 2)
    assert "noise_scale" in figures
    assert list(tape.figures(tape.row.numpy()))[6:] == ["noise_scale"]
