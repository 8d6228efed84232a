"""The first run of a step: nothing of it is left."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.runtime.state.variables import memory_of
from kungfu.training.graph.step import WHOLE, as_tensors
from kungfu.training.graph.tracing.effects import EffectGate, Effects, effects_of
from kungfu.training.loop.warm_up import compiled_step, warm_up
from tests.training.linear import linear_model, linear_run, points


def warmed(training, function, *args, effects=None):
    """The step of a job that this peer has not entered, tried out; what it gives enters the job and runs it."""
    run = training._run
    version = run.graph_state.view.version
    run.trace.gate = gate = EffectGate(lambda: version.read_value() > 0)
    tensors = as_tensors(args, {})
    compiled = compiled_step(run, function, tensors, (args, {}), hold=training._calls.hold_barrier)
    effects = effects_of(run.trace.graph, gate=gate) if effects is None else effects
    warm_up(compiled, run.attachment, tensors, effects=effects)

    def entered():
        version.assign(1)
        return compiled(WHOLE, tensors)[0]

    return entered


def test_the_warm_up_leaves_every_variable_as_it_was_the_users_own_too():
    model = linear_model(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    optimizer = keras.optimizers.Adam(0.1)
    own, generator, branched = tf.Variable([5, 5]), tf.random.Generator.from_seed(1), tf.Variable(0.0)
    unread = tf.Variable(0)
    training = kf.attach(model, optimizer, policies=[growing()])

    def step(x):
        own.scatter_add(tf.IndexedSlices([1], [0]))
        unread.assign_add(1, read_value=False)
        noise = generator.normal([])
        tf.cond(tf.size(x) > 0, lambda: branched.assign_add(1.0), lambda: branched.read_value())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x + noise, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def snapshot():
        variables = [*model.variables, *optimizer.variables, own, unread, generator.state, branched]
        return [np.asarray(one).tobytes() for one in variables]

    before = snapshot()
    run = warmed(training, step, points(2))
    assert snapshot() == before
    assert int(training._run.graph_state.progress.step) == 0
    posts = training._run.graph_state.posts
    assert [int(one.asked) for one in posts.counts] == [0, 0], "a rule that fired while warming up posted nothing"
    run()
    assert snapshot() != before


@kf.policy
def growing(training):
    """Asks for two peers in every step, the warm-up too."""
    return kf.control.always().call(lambda control: control.rescale(2))


def test_every_variable_has_its_own_memory_back():
    frozen = keras.layers.Dense(3)
    model = linear_model(frozen)
    frozen.trainable = False
    optimizer, during = keras.optimizers.SGD(0.1, momentum=0.9), []
    training = kf.attach(model, optimizer)
    variables = [weight.value for weight in model.weights]

    def places():
        return memory_of(variables).table[:, 0].tolist()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        with tf.control_dependencies([variable.read_value() for variable in variables]):  # behind the update
            tf.py_function(lambda: during.append(places()), [], [])

    before = places()
    warmed(training, step, points(2), effects=Effects(calls=(), others=()))  # this call is to be made
    assert places() == before
    moved = [weight.path for weight, old, new in zip(model.weights, before, during[0], strict=True) if old != new]
    assert moved == [weight.path for weight in model.trainable_weights]


def tried(body, x=points(2)):  # noqa: B008
    """The step of a job that calls ``body(x)``, averages, and gives what the body gives; see ``warmed``."""
    training = kf.attach(linear_model(), keras.optimizers.SGD(1.0))

    def step(x):
        given = body(x)
        training.average([tf.reduce_sum(x)], loss=0.0)
        return given

    return warmed(training, step, x)


def written(folder):
    """How many summaries are in a folder, the header of each file left out."""
    return sum(sum(1 for _ in tf.data.TFRecordDataset(str(path))) - 1 for path in folder.iterdir())


def test_prints_and_summaries_come_of_the_steps_and_not_of_the_warm_up(tmp_path):
    printed, writer = tmp_path / "printed", tf.summary.create_file_writer(str(tmp_path / "summaries"))
    stream = f"file://{printed}"

    def body(x):
        tf.print("step", output_stream=stream)
        tf.cond(tf.size(x) > 0, lambda: tf.print("branch", output_stream=stream), lambda: tf.no_op())
        for turn in tf.range(2):
            tf.print("turn", turn, output_stream=stream)
        with writer.as_default(), tf.summary.record_if(tf.size(x) > 1):
            tf.summary.scalar("always", 1.0, step=0)
        with writer.as_default(), tf.summary.record_if(tf.size(x) > 9):
            tf.summary.scalar("never", 1.0, step=0)

    run = tried(body)
    writer.flush()
    assert not printed.exists()
    assert written(tmp_path / "summaries") == 0
    run()
    writer.flush()
    assert sorted(printed.read_text().split("\n")) == ["", "branch", "step", "turn 0", "turn 1"]
    assert written(tmp_path / "summaries") == 1


def test_python_that_a_step_calls_is_not_called_by_the_warm_up():
    calls, own = [], tf.Variable([1.0, 1.0])

    @tf.function
    def before():
        tf.py_function(lambda: calls.append("before"), [], [])

    before()

    def doubled(x):
        calls.append("doubled")
        return 2 * x

    def body(x):
        before()
        tf.numpy_function(lambda: calls.append("array"), [], [])
        twice = tf.py_function(doubled, [x], tf.float32)
        halves = tf.ensure_shape(tf.py_function(lambda x: doubled(x) / 4, [x], tf.float32), [None, 2])
        own.assign(tf.reduce_sum(twice + halves, axis=0))

    run = tried(body)
    assert calls == ["before"]
    run()
    assert sorted(calls) == ["array", "before", "before", "doubled", "doubled"]
    assert own.numpy().tolist() == [2.5, 5.0]


def test_what_zeros_cannot_stand_for_is_left_to_the_first_step():
    def body(x):
        count = tf.py_function(lambda: tf.constant(2), [], tf.int32)
        tf.debugging.assert_positive(count)
        return count

    assert int(tried(body)()) == 2


def test_an_error_of_the_step_in_the_warm_up_is_raised():
    def body(x):
        tf.debugging.assert_less(x, 1.0, message="too large")

    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        tried(body, points(4))


def test_a_step_that_takes_from_an_iterator_or_prints_is_not_run(tmp_path, capsys):
    elements = iter(tf.data.Dataset.range(5))

    @tf.function
    def printing():
        tf.print("printed", output_stream=f"file://{tmp_path / 'printed'}")

    printing()

    def body(x):
        printing()
        return next(elements)

    run = tried(body)
    assert "PrintV2, IteratorGetNext would act twice" in capsys.readouterr().err
    assert int(run()) == 0
    assert (tmp_path / "printed").read_text() == "printed\n" * 2


def test_a_step_that_checks_numbers_and_samples_classes_is_run(capsys):
    classes = tf.Variable(tf.ones([50, 2]))

    def body(x):
        checked = tf.debugging.check_numerics(x, "the batch")
        labels = tf.zeros([tf.shape(x)[0], 1], tf.int64)
        tf.nn.sampled_softmax_loss(classes, tf.zeros([50]), labels, checked, 5, 50)
        tf.image.sample_distorted_bounding_box([9, 9, 3], tf.zeros([1, 0, 4]), use_image_if_no_bounding_boxes=True)

    tried(body)
    assert capsys.readouterr().err == ""


def test_a_loop_that_python_ends_is_not_run(capsys):
    left = [0]

    def body(x):
        count = tf.constant(0)
        while tf.py_function(lambda: left.append(0) or len(left) < 4, [], tf.bool):
            count += 1
        return count

    run = tried(body)
    assert "EagerPyFunc in a loop" in capsys.readouterr().err
    assert left == [0]
    assert int(run()) == 2


def test_alone_nothing_of_a_step_comes_before_its_time():
    calls = []
    linear_run(before=lambda training, x: tf.py_function(lambda: calls.append(0), [], [])).step(points(2))
    assert calls == [0]
