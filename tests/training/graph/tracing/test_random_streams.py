"""What a step draws is a peer's own; alone it is what the program would draw without kungfu."""

from __future__ import annotations

import functools
import gc
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.training.graph.step import WHOLE, as_tensors
from kungfu.training.graph.tracing.random_streams import RandomStreams
from kungfu.training.loop.warm_up import compiled_step
from tests.training.linear import linear_model, points

STEPS = 2


class Program:
    """A program that draws in all ways; ``draw`` is its step, without the average."""

    def __init__(self, *, seed: int | None = 7) -> None:
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(3 if seed is None else seed)
        self.model = linear_model(keras.layers.Dropout(0.5, seed=5))
        self.generator = tf.random.Generator.from_seed(1)
        self.split = self.generator.split(1)[0]
        self.seeds = keras.random.SeedGenerator(2)

    def draw(self, x: Any) -> list[Any]:
        drawn = [
            tf.random.normal([4]),
            tf.random.uniform([4], seed=9),
            tf.cond(tf.size(x) > 0, lambda: tf.random.uniform([4]), lambda: tf.zeros([4])),
            tf.nn.dropout(tf.ones([40]), 0.5),
            self.generator.normal([4]),
            self.split.uniform([4]),
            keras.random.uniform([4], seed=self.seeds),
            keras.random.uniform([4]),
            self.model.layers[0](tf.ones([40, 2]), training=True),
        ]
        return [tf.reshape(one, [-1]) for one in drawn]

    def of_peer(self, peer: int, *, after: int = 0, steps: int = STEPS) -> list[list[Any]]:
        """What the steps of a peer draw, in order, by the way of drawing."""
        training = kf.attach(self.model, keras.optimizers.SGD(1.0))
        run = training._run
        seeds = [one.value for one in self.model.variables if one.name == "seed_generator_state"]
        run.trace.random_streams = RandomStreams([0, peer, after], untouched=seeds)

        def step(x):
            drawn = self.draw(x)
            training.average([tf.reduce_sum(x)], loss=0.0)
            return drawn

        tensors = as_tensors((points(2),), {})
        compiled = compiled_step(run, step, tensors, ((points(2),), {}), hold=training._calls.hold_barrier)
        drawn = [[one.numpy().tolist() for one in compiled(WHOLE, tensors)[0]] for _ in range(steps)]
        return [list(ways) for ways in zip(*drawn, strict=True)]

    def between_steps(self) -> list[Any]:
        """What the program draws next, outside of its step."""
        drawn = [self.generator.normal([2]), keras.random.uniform([2], seed=self.seeds), tf.random.uniform([2])]
        return [one.numpy().tolist() for one in [*drawn, keras.random.uniform([2])]]


@functools.cache
def drawn(peer: int, *, after: int = 0, seed: int = 7) -> tuple[list[list[Any]], list[Any]]:
    """What a peer draws in its first steps, by the way of drawing, and after its last, which differs between peers."""
    program = Program(seed=seed)
    ways = program.of_peer(peer, after=after, steps=STEPS + peer)
    return [steps[:STEPS] for steps in ways], program.between_steps()


WAYS = 8  # the last one is a layer of the model, whose seed attach plants


def test_each_peer_and_each_resumed_run_draws_numbers_of_its_own():
    runs = [ways for ways, _ in (drawn(0), drawn(1), drawn(0, after=5), drawn(0, seed=8))]
    for way in range(WAYS):
        random_streams = [run[way] for run in runs]
        assert all(first != second for first, second in random_streams), f"way {way} goes on from step to step"
        different = {repr(one) for one in (random_streams if way not in (4, 5, 6) else random_streams[:3])}
        assert len(different) == (4 if way not in (4, 5, 6) else 3), f"way {way}: generators have seeds of their own"


def test_what_is_drawn_follows_from_the_seeds_also_where_generators_are_frozen():
    """A second run of a peer draws the same; that its generators are frozen for the collector hides none of them."""
    (expected, _), program = drawn(1), Program()
    gc.freeze()
    try:
        assert program.of_peer(1)[:WAYS] == expected[:WAYS]
    finally:
        gc.unfreeze()


def test_what_is_drawn_between_steps_stays_what_it_was_and_equal_on_all_peers():
    (_, first), (_, second) = drawn(0), drawn(1)
    assert first == second
    untouched = Program().between_steps()
    assert [first[place] for place in (0, 1, 3)] == [untouched[place] for place in (0, 1, 3)]


def test_registered_generators_are_left_alone_where_shared_and_planted_where_own():
    shared, own, states = (tf.random.Generator.from_seed(4) for _ in range(3))
    before = shared.state.numpy().tolist()
    random_streams = RandomStreams([0, 1, 0], untouched=[shared.state], planted=[own.state])

    def draw():
        drawn = [one.normal([2]) for one in (shared, own, states)]
        tf.autograph.experimental.do_not_convert(random_streams.exchange)(tf.compat.v1.get_default_graph())
        return drawn

    drawn = [one.numpy().tolist() for one in tf.function(draw)()]
    alike = tf.random.Generator.from_seed(4).normal([2]).numpy().tolist()
    assert drawn[0] == alike
    assert alike not in drawn[1:]
    assert shared.state.numpy().tolist() != before, "it goes on"
    assert states.state.numpy().tolist() == before, "another one stands for it in the graph"
    assert own.state.numpy().tolist() != before


def test_a_program_that_runs_alone_draws_what_it_would_without_kungfu():
    def of_two_steps(around):
        program = Program()
        run = around(program)
        return [[np.asarray(one).tolist() for one in run(tf.constant(points(2)))] for _ in range(2)]

    def attached(program):
        training = kf.attach(program.model, keras.optimizers.SGD(1.0), seed=11)

        @training.step
        def step(x):
            ways = program.draw(x)
            training.average([tf.reduce_sum(x)], loss=0.0)
            return ways

        return step

    assert of_two_steps(attached) == of_two_steps(lambda program: tf.function(program.draw))
