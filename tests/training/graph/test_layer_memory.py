"""Layers with a memory: what the program says of their variables, and what becomes of these over the peers."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.compiler.lower import fused
from kungfu.errors import UsageError
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.training.graph.average import SummedTotals, average
from kungfu.training.graph.layer_memory import AddedSums, LayerMemory
from kungfu.training.graph.training_state import classify
from tests.training.linear import Run, linear_model, linear_run, points
from tests.training.peers import averaging_of, on_peers


class Count(keras.layers.Layer):
    """Counts samples and steps."""

    def __init__(self, word: str | None = None, dtype: str = "float32", **given: Any) -> None:
        super().__init__(**given)
        self.word, self.kind = word, dtype

    def build(self, _: Any) -> None:
        more = {"initializer": "zeros", "trainable": False}
        self.seen = self.add_weight(dtype=self.kind, aggregation=self.word, name="seen", **more)
        self.steps = self.add_weight(name="steps", **more)

    def call(self, x: Any) -> Any:
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(x)[0], self.kind))
        self.steps.assign_add(1.0)
        return x


class Normal(keras.layers.BatchNormalization):
    """Keras' statistics, and one of the program's."""

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.peak = self.add_weight(shape=(), initializer="zeros", trainable=False, name="peak")


def shared_run(*layers: Any, **given: Any) -> Run:
    """A run of one peer of a job."""
    run = linear_run(*layers, **given)
    run.training._run.memory.share(run.training._run.trace)
    return run


def test_a_word_says_which_part_of_the_state_a_variable_is_and_keras_layers_stay():
    layers = [Count(one, name=str(one)) for one in ("sum", "mean", "only_first_replica", None)]
    model = linear_model(*layers, Normal(name="normal"), Count(dtype="int32", name="told"))
    memory = LayerMemory.of(model, {"told/seen": "only_first_replica", "linear/normal/moving_mean": "mean"})
    classes = classify(model, [], {}, reductions=memory.reductions)
    assert {name for name in classes.shared if "seen" in name} == {"model/linear/sum/seen"}
    assert set(classes.of_rank_0) == {"model/linear/only_first_replica/seen", "model/linear/told/seen"}
    assert {"model/linear/mean/seen", "model/linear/None/seen"} < set(classes.averaged)
    assert {f"model/linear/normal/{name}" for name in ("moving_mean", "moving_variance")} < set(classes.averaged)
    open_to = [one.variable.path for one in memory.remembered if one.reduction is None and not one.is_of_keras]
    assert "linear/normal/peak" in open_to
    assert "linear/normal/moving_variance" not in open_to
    assert len(memory.described) == len(memory.reductions) == 5


NO_MEAN = r"'linear/count/seen' has the reduction 'mean' and is of int64, which has no exact mean: say 'sum' or 'only"


@pytest.mark.parametrize(
    ("made", "combine", "message"),
    [
        (("mean", "int64"), {}, NO_MEAN),
        (("sum", "uint8"), {}, r"has the reduction 'sum' and is of uint8: peers can add up float16, .* int64"),
        ((), {"count/sein": "sum"}, r"names 'count/sein', which is no variable .* they are linear/count/seen, "),
        ((), {"count/seen": "max"}, r"'max'}: of a layer's variable it must be one of 'sum', 'mean', 'only_first"),
    ],
)
def test_words_that_do_not_fit_are_refused_by_attach(made, combine, message):
    layer = Count(*made, name="count")
    with pytest.raises(UsageError, match=message):
        kf.attach(linear_model(layer), keras.optimizers.SGD(1.0), combine=combine)


def test_a_count_of_samples_needs_a_word_and_a_count_of_steps_needs_none():
    run = shared_run(Count(name="count"))
    with pytest.raises(UsageError) as refused:
        run.step(points(2))
    told = str(refused.value)
    assert "Count assigns to its variable 'linear/count/seen' what follows from this peer's own samples (" in told
    assert f"{__file__}:" in told
    assert 'self.seen = self.add_weight(..., trainable=False, aggregation="sum")' in told
    assert 'attach(..., combine={"count/seen": "sum"})' in told
    assert "steps" not in told
    assert run.training.step_number == 0
    alone = linear_run(Count(name="count"))
    alone.step(points(2))
    assert float(alone.model.layers[0].seen) == 2.0, "a program that runs alone sees all samples"


def test_a_sum_grows_by_what_is_seen_and_a_step_that_fails_leaves_it():
    """Also what a step without samples adds does not count, and a count of steps goes on in it."""
    count, fails = Count("sum", "int64"), tf.Variable(False)
    check = keras.layers.Lambda(lambda x: (tf.debugging.assert_equal(fails, False), x)[1])
    run = shared_run(count, check)
    run.steps(3, samples=5)
    assert (int(count.seen), float(count.steps)) == (15, 3.0)
    fails.assign(True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        run.step(points(5))
    fails.assign(False)
    assert int(count.seen) == 15
    run.step(points(0))
    steps = float(count.steps)
    run.step(points(4))
    assert int(count.seen) == 19
    assert steps >= 4.0, "it is the same on all peers"


def test_a_sum_is_added_once_over_micro_batches():
    count = Count("sum", "int64")
    run = shared_run(count)
    for batch in run.training.batches(points(23), batch_size=10, epochs=2, seed=0, max_local_batch_size=4):
        run.step(batch)
    assert run.training.step_number == 6
    assert int(count.seen) == 46


def test_a_sum_that_is_added_to_after_the_message_is_refused():
    count = Count("sum", name="count")
    run = shared_run(count, after=lambda training, gradients: count(tf.ones([1, 2])))
    with pytest.raises(UsageError, match=r"'linear/count/seen' of the layer 'count' after training.average\(\), on wh"):
        run.step(points(2))


def test_what_each_peer_adds_is_added_up_and_whole_numbers_stay_exact():
    start, samples = 2**40 + 1, (3.0, 0.0, 1.0)  # the second one ran on another's sample

    def of_peer(rank: int, attachment: LocalAttachment) -> Any:
        averaging = averaging_of([], rank, attachment, size=3, samples=samples[rank], batch=4, made=fused)
        whole, broken = tf.Variable(start, dtype=tf.int64), tf.Variable([0.5, 0.0])
        sums = AddedSums([whole, broken])

        for _ in range(2):
            with sums.traced():
                whole.assign_add(max(1, int(samples[rank])))
                broken.assign_add([0.25, float(rank)])
                summed = [SummedTotals(sums.outgoing(), sums.conclude)]
                average(averaging, [tf.constant([1.0])], loss=tf.constant(0.0), summed=summed)
        return int(whole), broken.numpy().tolist()

    found = on_peers(3, of_peer)
    assert found == [(start + 8, [1.5, 4.0])] * 3
