"""Canaries: each private part of TensorFlow and Keras that kungfu uses is there, and does what it is used for."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu
from kungfu import framework_internals as internals
from tests.keras.fitting import float64

ROOT = Path(kungfu.__file__).parent


def model() -> Any:
    normal = keras.layers.BatchNormalization()
    dense = keras.layers.Dense(1)
    dense.trainable = False
    return keras.Sequential([keras.Input((2,)), normal, dense])


@pytest.mark.parametrize("module", [one for one in internals.KERAS_TRAINERS if "backend.tensorflow" in one])
def test_keras_defines_fit_where_the_guard_waits_for_it(module: str) -> None:
    name = internals.KERAS_TRAINERS[module]
    trainer = getattr(import_module(module), name, None)
    harm = f"Keras {keras.__version__} does not define fit in {module}.{name}: kungfu-run no longer sees model.fit()"
    assert "fit" in vars(trainer or object), harm
    assert issubclass(keras.Model, trainer), harm


def test_keras_tells_statistics_from_frozen_weights() -> None:
    built = model()
    harm = "kungfu could not tell statistics, which it averages, from frozen weights, which it keeps equal"
    assert internals.is_keras_model(built), f"Keras {keras.__version__} has no Model._flatten_layers: {harm}"
    assert not internals.is_keras_model(tf.Module())
    assert {*built.layers, built} <= {*internals.all_layers(keras.Sequential([built]))}, "Model._flatten_layers"
    names = {one.name for one in internals.layer_statistics(built)}
    assert names == {"moving_mean", "moving_variance"}, f"Layer._non_trainable_variables are {names}: {harm}"


def test_keras_tells_of_what_calls_a_functional_model_is_made() -> None:
    harm = "peers could not tell that their models are wired in another way, or compute with other numbers"
    given = keras.Input((2,))
    dense, lost = keras.layers.Dense(1), f"Keras {keras.__version__} has no Function._nodes_by_depth: {harm}"
    one = keras.Model(given, dense(given) * 0.5)
    calls = internals.calls_of(one)
    assert [(operation.name.rstrip("_0123456789"), [*args[1:]]) for operation, args, _ in calls] == [
        ("dense", []),
        ("multiply", [0.5]),
    ], lost
    maker, output = internals.maker_of(calls[1][1][0])
    assert maker is dense, f"KerasTensor._keras_history: {harm}"
    assert output == 0
    assert internals.calls_of(dense) == []


def test_keras_keeps_what_compile_was_given() -> None:
    one, loss = model(), keras.losses.MeanSquaredError()
    assert internals.compiled_with(one) == {}
    one.compile("sgd", loss, loss_weights=[0.5])
    harm = f"Keras {keras.__version__} has no Trainer._compile_config: peers could not compare losses and their weights"
    assert internals.compiled_with(one).get("loss") is loss, harm
    assert internals.compiled_with(one)["loss_weights"] == [0.5], harm


def test_keras_tells_the_variables_of_its_own_layers_from_those_of_a_subclass() -> None:
    class Normal(keras.layers.BatchNormalization):
        def build(self, shape: Any) -> None:
            super().build(shape)
            self.peak = self.add_weight(shape=(), trainable=False, name="peak")

    built = keras.Sequential([keras.Input((2,)), Normal(), keras.layers.BatchNormalization()])
    built.peak = keras.Variable(0.0, trainable=False, name="peak")
    found = {(type(layer).__name__, one.name): (layer, one) for layer, one in internals.layers_with_statistics(built)}
    own = {name for name, given in found.items() if internals.is_made_by_keras(*given)}
    harm = "kungfu would ask for the aggregation of BatchNorm's statistics in a subclass, or for none of its own"
    assert {*found} - own == {("Normal", "peak"), ("Sequential", "peak")}, harm
    assert {("Normal", "moving_mean"), ("BatchNormalization", "moving_mean")} <= own, harm


def test_keras_gives_the_schedule_of_an_optimizer() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    found = internals.learning_rate_or_schedule(keras.optimizers.SGD(schedule))
    assert found is schedule, "Optimizer._learning_rate is no schedule: rules could not move such a rate"


def test_keras_reads_the_rate_of_an_update_by_a_method_that_is_replaced() -> None:
    optimizer = keras.optimizers.SGD(1.0)
    with internals.learning_rate_scaled(optimizer, lambda rate: tf.convert_to_tensor(rate) / 2) as plain:
        found = [float(tf.convert_to_tensor(one)) for one in (optimizer.learning_rate, plain())]
    harm = "Optimizer._get_current_learning_rate is not what the public rate reads: a factor on it would change nothing"
    assert [*found, float(tf.convert_to_tensor(optimizer.learning_rate))] == [0.5, 1.0, 1.0], harm


def test_keras_tells_the_model_alone_from_which_epoch_a_backup_goes_on(tmp_path: Path) -> None:
    one = model()
    one.compile("sgd", "mse")
    one.optimizer.build(one.trainable_variables)
    assert internals.restored_epoch(one) is None
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    backup.set_model(one)
    backup.on_epoch_end(2)
    backup.on_train_begin()
    assert internals.restored_epoch(one) == 3, "Model._initial_epoch: a job would begin at its first epoch again"


def test_keras_puts_metrics_into_the_order_that_evaluate_gives() -> None:
    one = model()
    one.compile("sgd", "mse", metrics=["mae", "mse"])
    found = one.evaluate(np.ones((3, 2)), np.zeros((3, 1)), verbose=0)
    logs = one.get_metrics_result()
    harm = "Model._flatten_metrics_in_order: model.evaluate() of a job would give its numbers in another order"
    assert [float(value) for value in internals.flat_metrics(one, logs)] == pytest.approx(found), harm


def test_keras_has_a_metric_of_the_loss_beside_those_that_a_model_shows() -> None:
    class Hiding(keras.Sequential):
        @property
        def metrics(self) -> list[Any]:
            return []

    hiding = Hiding([keras.Input((2,)), keras.layers.Dense(1)])
    assert internals.loss_tracker(hiding) is None
    hiding.compile("sgd", "mse")
    tracker = internals.loss_tracker(hiding)
    assert isinstance(tracker, keras.metrics.Mean), "Model._loss_tracker is no mean: a fit of kungfu's tells no loss"
    assert tracker.name == "loss"


def test_keras_keeps_the_loss_of_each_output_as_a_mean_over_steps() -> None:
    given = keras.Input((2,))
    built = keras.Model(given, [keras.layers.Dense(1, name="one")(given), keras.layers.Dense(1, name="two")(given)])
    built.compile("sgd", ["mse", "mse"])
    assert internals.output_loss_trackers(model()) == []
    x, y = keras.KerasTensor((None, 2)), keras.KerasTensor((None, 1))
    internals.build_symbolically(built, (x, [y, y]))
    found = internals.output_loss_trackers(built)
    harm = "the losses of several outputs in a job would be means over its peers, not over steps"
    assert [one.name for one in found] == ["one_loss", "two_loss"], harm
    assert all(isinstance(one, keras.metrics.Mean) for one in found), harm
    data = tf.data.Dataset.from_tensor_slices((np.ones((5, 2)), ([[1.0]] * 5, [[1.0]] * 5))).batch(3)
    built.fit(data, shuffle=False, verbose=0)
    assert float(found[0].count) == 2, harm


def test_keras_builds_a_model_for_a_batch_without_running_it() -> None:
    class Running(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            assert not tf.executing_eagerly()
            return x

    built = keras.Sequential([Running(), keras.layers.Dense(1)])
    built.compile("adam", "mse", metrics=["mae"])
    internals.build_symbolically(built, (keras.KerasTensor((None, 3)), keras.KerasTensor((None, 1))))
    harm = "Model._symbolic_build leaves parts unbuilt: a fit under kungfu-run would trace its step twice"
    assert built.built, harm
    assert built.optimizer.built, harm
    assert [one.name for one in built.metrics[1].metrics] == ["mae"], harm


def test_keras_reduces_every_loss_by_one_function_that_knows_values_weights_and_mask() -> None:
    harm = "losses.loss.reduce_weighted_values is another: losses of a job would be divided by what a slice has"
    seen: list[Any] = []

    def reduce(own: Any, values: Any, **given: Any) -> Any:
        seen.append((tuple(values.shape), given))
        return own(values, **given)

    def losses_of(kind: str, weights: Any = None) -> Any:
        built = model()
        built.compile("sgd", keras.losses.MeanSquaredError(kind))
        return built.compute_loss(y=tf.zeros((3, 2, 1)), y_pred=masked, sample_weight=weights)

    masked = tf.ones((3, 2, 1))
    masked._keras_mask = tf.constant([[True, False]] * 3)
    weights = tf.constant([[1.0], [2.0], [3.0]])
    with internals.reductions_by(reduce):
        assert float(losses_of("sum", weights)) == 6.0, harm
        assert float(losses_of("mean", weights)) == 2.0, harm
        keras.losses.MeanSquaredError()(tf.zeros((3, 2)), tf.zeros((3, 2)))
    ((shape, given), _) = seen
    assert shape == (3, 2), harm
    assert given["reduction"] == "sum", harm
    assert given["mask"] is masked._keras_mask, harm
    assert given["sample_weight"] is weights, harm
    losses_of("sum")
    assert len(seen) == 2, harm


@pytest.mark.parametrize("what", ["apply", "result"])
def test_an_object_of_keras_has_another_method_for_a_while(what: str) -> None:
    built = keras.optimizers.SGD() if what == "apply" else keras.metrics.Mean()
    harm = f"Keras {keras.__version__}: a train_step of the program's own could not be averaged in a job"
    with internals.replaced_method(built, what, lambda: "another"):
        assert getattr(built, what)() == "another", harm
    assert getattr(built, what).__func__ is getattr(type(built), what), harm


def test_keras_divides_a_masked_mean_by_the_positions_and_an_added_number() -> None:
    """Keras divides a masked mean by the number of positions plus the number of `added_to_unmasked`."""
    with float64():
        built = model()
        built.compile("sgd", "mse")
        masked = tf.ones((1, 2, 1), tf.float64)
        masked._keras_mask = tf.constant([[True, False]])
        found = float(built.compute_loss(y=tf.zeros((1, 2, 1), tf.float64), y_pred=masked))
    harm = f"Keras {keras.__version__} adds another number: masked losses of a job would be off by 1e-7 / positions"
    assert found == pytest.approx(1.0 / (1.0 + internals.added_to_unmasked()), rel=1e-14), harm


@pytest.mark.parametrize("compiled", [True, False])
def test_tensorflow_tells_whether_xla_compiles_a_graph(compiled: bool) -> None:
    seen = []

    @tf.function(jit_compile=compiled, autograph=False)
    def function(x: Any) -> Any:
        seen.append(internals.is_in_xla_context(tf.compat.v1.get_default_graph()))
        return x + 1

    function.get_concrete_function(tf.constant(1))
    assert set(seen) == {compiled}, "GraphOrParentsInXlaContext differs: a step in jit_compile=True fails unexplained"


def test_tensorflow_takes_gradients_by_a_method_that_can_be_heard() -> None:
    variable, noted = tf.Variable(2.0), list[tuple[Any, Any]]()

    @tf.function
    def taken() -> Any:
        with tf.GradientTape() as tape:
            loss = variable * variable
        return tape.gradient(loss, [variable])

    plain = tf.GradientTape.gradient
    with internals.gradients_noted(lambda found, target: noted.append((found, target))):
        (found,) = taken()
        with tf.GradientTape() as tape:
            loss = 3.0 * variable
        tape.gradient(loss, variable)
    harm = f"TensorFlow {tf.__version__}: no policy would see the loss of a train_step of the program's own"
    assert float(found) == 4.0, harm
    assert [len(one) for one, _ in noted] == [1], "an eager one is the program's own"
    assert tf.GradientTape.gradient is plain


def test_tensorflow_adds_control_inputs_to_an_op_that_is_there() -> None:
    with tf.Graph().as_default():
        first, second = tf.constant(1), tf.constant(2)
        internals.add_control_inputs(second.op, [first.op])
        assert list(second.op.control_inputs) == [first.op], (
            "Operation._add_control_inputs has no effect: a step that loses a peer would have moved variables already"
        )


def test_tensorflow_gives_the_graph_of_a_function_that_is_called() -> None:
    inner = tf.function(tf.cos)
    outer = tf.function(lambda x: inner(x)).get_concrete_function(tf.constant(1.0))
    [call] = [op for op in outer.graph.get_operations() if "Call" in op.type]
    types = {op.type for op in internals.function_graph(outer.graph, call.get_attr("f").name).get_operations()}
    assert "Cos" in types, "Graph._get_function gives no graph: effects inside of functions would not be found"


def test_tensorflow_calls_a_concrete_function_with_its_tensors_as_they_are() -> None:
    total = tf.Variable(1.0)
    spec = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)]
    traced = tf.function(lambda x, y: [x * y, total.assign_add(y)], input_signature=spec).get_concrete_function()
    given = [tf.constant([1.0, 2.0]), tf.constant(3.0)]
    found = internals.call_traced(traced, given, traced.captured_inputs)
    assert [one.numpy().tolist() for one in found] == [[3.0, 6.0], 4.0], "ConcreteFunction._call_flat: each step"


def test_tensorflow_replaces_what_a_function_captures() -> None:
    program, own = tf.Variable(1.0), tf.Variable(2.0)

    @tf.function(autograph=False)
    def function() -> Any:
        value = program.read_value()
        graph = tf.compat.v1.get_default_graph()
        for handle, inside in list(graph.captures):
            internals.replace_capture(graph, handle, external=own.handle, internal=inside)
        return value

    harm = "_function_captures.add_or_replace has no effect: all peers would draw the same numbers"
    assert float(function()) == 2.0, harm


def test_tensorflow_makes_variables_in_a_second_trace() -> None:
    @tf.function(autograph=False)
    def function(x: Any) -> Any:
        with tf.init_scope():
            kept.append(internals.make_resource_variable(3.0, name="kept"))
        return x + kept[-1].read_value()

    kept: list[Any] = []
    assert float(function(tf.constant(1.0))) == 4.0
    assert function(tf.constant([1.0])).numpy().tolist() == [4.0], (
        "ResourceVariable cannot be made in a second trace: a generator in a step that is traced twice has no state"
    )


def test_tensorflow_tells_shape_and_type_of_a_variable_by_its_handle() -> None:
    found = internals.handle_shape_and_type(tf.Variable([1.0, 2.0]).handle)
    harm = "kungfu could not tell which variables a step touches"
    assert found is not None, f"Tensor._handle_data is not there or not set: {harm}"
    assert (tf.as_dtype(found.dtype), tf.TensorShape(found.shape).as_list()) == (tf.float32, [2]), harm
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2)
    assert internals.handle_shape_and_type(table.resource_handle) is None, f"a table is taken for a variable: {harm}"


def test_tensorflow_makes_prints_and_summaries_by_the_functions_that_are_replaced(
    monkeypatch: Any, tmp_path: Path
) -> None:
    made: list[str] = []

    def recording(plain: Any, maker: str) -> Any:
        return lambda *args, **kwargs: made.append(maker) or plain(*args, **kwargs)

    for module, name in internals.effect_op_makers():
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, recording(plain, name))

    @tf.function(autograph=False)
    def function() -> None:
        tf.print("seen")
        tf.summary.write("loss", 1.0, step=0)

    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        function.get_concrete_function()
    assert "print_v2" in made, "tf.print does not go by gen_logging_ops: a joiner's trial of its step would print"
    assert "write_summary" in made, "tf.summary does not go by gen_summary_ops: a joiner's trial would write summaries"


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_tensorflow_calls_another_python_function_for_a_token(kind: str) -> None:
    call = tf.py_function if kind == "tensors" else tf.numpy_function
    function = tf.function(lambda x: call(lambda one: one + 1.0, [x], tf.float32), autograph=False)
    graph = function.get_concrete_function(tf.constant(1.0)).graph
    [token] = {op.get_attr("token").decode() for op in graph.get_operations() if "PyFunc" in op.type}
    plain = internals.python_function(token)
    harm = "a joiner's trial of its step would call the program's Python"
    assert plain is not None, f"script_ops._py_funcs knows no token: {harm}"
    assert internals.is_eager_function(plain) is (kind == "tensors"), f"script_ops.EagerFunc is another class: {harm}"

    zeros = [np.zeros([], np.float32)]
    other = internals.make_eager_function(lambda _: zeros, [tf.float32]) if kind == "tensors" else lambda _: zeros
    internals.replace_python_functions({token: other})
    assert float(function(tf.constant(1.0))) == 0.0, f"the registry of script_ops has no effect: {harm}"
    internals.replace_python_functions({token: plain})
    assert float(function(tf.constant(1.0))) == 2.0


def test_importing_it_loads_neither_framework() -> None:
    source = ROOT / "framework_internals.py"
    loaded = "bool({'tensorflow', 'keras'} & {*sys.modules})"
    check = f"import runpy, sys; runpy.run_path({str(source)!r}); sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_no_other_module_names_a_private_part() -> None:
    private = re.compile(
        r"tensorflow\.python|keras\.src|\._(flatten_layers|non_trainable_variables|learning_rate|handle_data|get_function"
        r"|function_captures|add_control_inputs|py_funcs|funcs)\b"
    )
    texts = {path: path.read_text() for path in ROOT.rglob("*.py") if path.name != "framework_internals.py"}
    found = {str(path.relative_to(ROOT)): match[0] for path, text in texts.items() if (match := private.search(text))}
    assert not found, "put it into kungfu/framework_internals.py, with a canary"


def test_tensorflow_tells_branches_and_loops_from_functions() -> None:
    found: dict[str, bool] = {}

    def look(name: str) -> Any:
        found[name] = internals.is_under_condition(tf.compat.v1.get_default_graph())
        return tf.constant(True)

    @tf.function
    def step(x: Any) -> Any:
        look("step")
        tf.function(lambda: look("function"))()
        tf.cond(x > 0, lambda: look("branch"), lambda: look("other branch"))
        tf.cond(x > 0, lambda: tf.function(lambda: look("function in a branch"))(), lambda: tf.constant(True))
        return tf.while_loop(lambda i: i < 2, lambda i: (look("loop"), [i + 1])[1], [0])

    step(tf.constant(1))
    inside = {"branch", "other branch", "function in a branch", "loop"}
    harm = "ControlFlowFuncGraph tells nothing: an average under a condition would be waited for on some peers only"
    assert {name for name, is_inside in found.items() if is_inside} == inside, harm


def test_tensorflow_tells_which_variables_an_op_writes() -> None:
    read, written, branched = (tf.Variable(1.0) for _ in range(3))

    @tf.function
    def step() -> Any:
        tf.function(lambda: written.assign_add(read))()
        tf.cond(read > 0.0, lambda: branched.assign(2.0), lambda: read.read_value())
        return read.read_value()

    graph = step.get_concrete_function().graph
    names = {id(inside): external for external, inside in graph.captures}
    found = {id(names[id(one)]) for op in graph.get_operations() for one in internals.resources_written(op)}
    harm = "auto_control_deps_utils does not tell: weights that are written past the optimizers would not be seen"
    assert found == {id(written.handle), id(branched.handle)}, harm


def test_tensorflow_tells_how_the_order_of_a_dataset_comes_about() -> None:
    harm = "kungfu could not tell a shuffled Dataset: peers would share a validation whose batches are others on each"
    rows, order = tf.data.Dataset.range(9), internals.dataset_order
    assert order(tf.data.Dataset.zip((rows, rows)).map(lambda a, b: a + b, 2).batch(3).prefetch(1)) == "as read"
    assert order(rows.shuffle(9, seed=1).batch(3).repeat(2)) == "by seed", f"shuffle() keeps no _seed2: {harm}"
    tf.random.set_seed(None)  # what other tests have set
    assert order(rows.shuffle(9).batch(3)) == "by chance", f"a seed that is drawn is not 0, 0: {harm}"
    assert order(rows.map(lambda a: a, 2, deterministic=False).batch(3)) == "by chance", f"map() and its order: {harm}"
