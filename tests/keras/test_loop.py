"""``fit`` by the job's loop and step, against Keras' own."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from tests.keras import fitting

pytestmark = pytest.mark.slow

X, Y = fitting.points()
CLASSES = {"classes": 3}


class Subclassed(keras.Model):
    """Is not built before its first batch."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(5)
        self.first, self.last = keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:  # without training=
        return self.last(self.first(x))


class Regularised(keras.Model):
    """Has a loss of its own, as Keras' guides write one."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(5)
        self.last = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.01))

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(x)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y - y_pred)) + keras.ops.sum(self.losses)


def two_outputs() -> Any:
    keras.utils.set_random_seed(6)
    given = {"left": keras.Input((3,), name="left"), "right": keras.Input((3,), name="right")}
    joined = keras.layers.Concatenate()(list(given.values()))
    outputs = {"value": keras.layers.Dense(1, name="value")(joined), "size": keras.layers.Dense(1, name="size")(joined)}
    return keras.Model(given, outputs)


def classifier() -> Any:
    return fitting.network(outputs=3, activation="softmax")


class Told(keras.callbacks.Callback):
    """Looks at the logs of each execution."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.ended = [], []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun.append(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ended.append((batch, dict(logs)))


class Keeping(keras.callbacks.Callback):
    """Keeps the logs of each step, and does not look at them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.kept.append(logs)


USUAL = {"batch_size": 7, "epochs": 2}  # the last batch of an epoch is of one sample


@cache
def plain_network() -> tuple[Any, Told]:
    """The usual fit of the network by Keras, with which fits of several tests are compared."""
    with fitting.float64():
        plain, told = fitting.compiled(fitting.network(), metrics=["mae"]), Told()
        fitting.plainly(plain, X, Y, callbacks=[told], **USUAL)
    return plain, told


@cache
def network_in_job() -> tuple[Any, Keeping]:
    """The usual fit of the network in a job."""
    with fitting.float64():
        mine, keeping = fitting.compiled(fitting.network(), metrics=["mae"]), Keeping()
        fitting.in_job(mine, X, Y, callbacks=[keeping], **USUAL)
    return mine, keeping


def test_a_network_is_trained_as_by_keras():
    (mine, _), (plain, _) = network_in_job(), plain_network()
    fitting.assert_same(mine, plain)
    assert mine.fit.attached.training.traces() == 1


@pytest.mark.parametrize("make", [Subclassed, Regularised])
def test_models_of_every_kind_are_trained_as_by_keras(make):
    fitting.assert_as_keras(make, X, Y, batch_size=12, epochs=2)


def test_layers_with_statistics_and_random_numbers_are_trained_as_by_keras():
    def make() -> Any:
        return fitting.network(keras.layers.BatchNormalization(), keras.layers.Dropout(0.3, seed=1))

    fitting.assert_as_keras(make, X, Y, batch_size=16, epochs=2, validation_data=(X, Y))


def test_several_inputs_and_outputs_have_their_losses_weights_and_metrics():
    data = {"left": X, "right": X[::-1]}
    targets = {"value": Y, "size": np.abs(Y)}
    fitting.assert_as_keras(
        two_outputs, data, targets, batch_size=9, epochs=2,
        op_by_op=False,  # Keras reports other losses of the single outputs so
        compile_with=lambda: {
            "loss": {"value": "mse", "size": "mae"}, "loss_weights": {"value": 1.0, "size": 0.5},
            "metrics": {"value": ["mae", "mse"], "size": [keras.metrics.RootMeanSquaredError()]},
        },
    )  # fmt: skip


def test_weights_of_samples_and_metrics_that_are_weighted():
    weights = np.linspace(0.0, 2.0, fitting.SAMPLES)
    fitting.assert_as_keras(
        fitting.network, X, Y, sample_weight=weights, batch_size=16, epochs=2,
        compile_with=lambda: {"metrics": ["mae"], "weighted_metrics": ["mae"]},
    )  # fmt: skip


@pytest.mark.parametrize("rows", ["numbers", "one-hot"])
def test_weights_of_classes_and_metrics_of_totals_and_tables(rows):
    x, y = fitting.points(**CLASSES)
    hot = keras.utils.to_categorical(y[:, 0], 3)
    loss = "sparse_categorical_crossentropy" if rows == "numbers" else "categorical_crossentropy"
    metrics = {
        "numbers": lambda: ["accuracy"],
        "one-hot": lambda: ["accuracy", keras.metrics.AUC(20, name="auc"), keras.metrics.F1Score()],
    }
    fitting.assert_as_keras(
        classifier, x, y if rows == "numbers" else hot,
        class_weight={0: 1.5, 2: 0.5}, batch_size=16, epochs=2,
        compile_with=lambda: {"loss": loss, "metrics": metrics[rows]()},
    )  # fmt: skip


def test_a_part_is_held_out_as_by_keras_and_validated_every_other_epoch():
    mine = fitting.assert_as_keras(
        fitting.network, X, Y, validation_split=0.3, validation_freq=2, batch_size=12, epochs=5, initial_epoch=1
    )
    assert mine.history.epoch == [1, 2, 3, 4]
    assert len(mine.history.history["val_loss"]) == 2


@pytest.mark.parametrize("jit_compile", [True, "auto"])
def test_forward_and_backward_pass_are_compiled_where_the_model_says_so(jit_compile, monkeypatch):
    with fitting.float64():
        # "auto" is what Keras compiles with by itself: XLA, where there is a device that is no CPU.
        listed = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
        with monkeypatch.context() as beside_gpu:
            beside_gpu.setattr(tf.config, "list_physical_devices", lambda *_: listed)
            mine = fitting.compiled(fitting.network(), jit_compile=jit_compile, metrics=["mae"])
        assert mine.jit_compile is True
        fitting.in_job(mine, X, Y, **USUAL)
        fitting.assert_same(mine, plain_network()[0])
        assert mine.fit.attached.training.traces() == 1


def test_in_half_precision_the_loss_is_scaled_as_by_keras():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        mine, plain = fitting.compiled(fitting.network()), fitting.compiled(fitting.network())
    finally:
        keras.config.set_dtype_policy("float32")
    fitting.in_job(mine, X, Y, batch_size=16, epochs=2)
    fitting.plainly(plain, X, Y, batch_size=16, epochs=2)
    # Processors round products of float16 in different ways, so a weight near zero differs by more than a hundredth.
    fitting.assert_same(mine, plain, relative=1e-2, absolute=1e-4)
    assert float(mine.optimizer.dynamic_scale) == float(plain.optimizer.dynamic_scale)


def test_shuffling_is_in_an_order_of_the_jobs_own_with_each_sample_once():
    x = np.arange(fitting.SAMPLES, dtype=np.float32)[:, None]

    def mean(_: Any, predicted: Any) -> Any:
        return predicted

    sums: list[float] = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: sums.append(logs["mean"]))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[mean])
    fitting.in_job(model, x, x, batch_size=10, epochs=2, shuffle=True, callbacks=[seen])
    np.testing.assert_allclose([sums[4], sums[9]], (fitting.SAMPLES - 1) / 2, rtol=1e-6)
    assert sums[0] != sums[5], "another order in each epoch"


@pytest.mark.parametrize("ends", ["with the data", "after some steps"])
def test_a_dataset_is_trained_on_as_by_keras(ends):
    rows = tf.data.Dataset.from_tensor_slices(({"x": X, "unused": X}, Y)).map(lambda a, b: (a["x"], b))
    with fitting.float64():
        mine, plain = (fitting.compiled(fitting.network(), metrics=["mae"]) for _ in range(2))
        if ends == "with the data":
            fitting.in_job(mine, rows.batch(USUAL["batch_size"]), epochs=USUAL["epochs"])
            plain, _ = plain_network()  # of arrays, which make the same batches
        else:
            for fit, model in ((fitting.in_job, mine), (fitting.plainly, plain)):
                fit(model, rows.batch(10).repeat(), epochs=4, steps_per_epoch=2)
        fitting.assert_same(mine, plain)


@pytest.mark.parametrize("kind", ["dataset", "dataset with weights", "py dataset"])
def test_batches_with_weights_of_classes_or_of_samples(kind):
    x, y = fitting.points(**CLASSES)
    pieces = (x, y) if kind == "dataset" else (x, y, np.linspace(0, 1, fitting.SAMPLES))
    data = fitting.Batches(x, y, 16) if kind == "py dataset" else tf.data.Dataset.from_tensor_slices(pieces).batch(25)
    given = {} if kind == "dataset with weights" else {"class_weight": {0: 1.0, 1: 3.0, 2: 1.0}}
    compile_with = partial(dict, loss="sparse_categorical_crossentropy")
    fitting.assert_as_keras(classifier, data, epochs=2, compile_with=compile_with, **given)


# ---- callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_of_keras_do_what_they_do_under_keras(tmp_path):
    def callbacks(name: str) -> list[Any]:
        return [
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.05),
            keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.02, restore_best_weights=True),
            keras.callbacks.CSVLogger(tmp_path / f"{name}.csv"),
            keras.callbacks.ModelCheckpoint(
                tmp_path / f"{name}.weights.h5", save_best_only=True, save_weights_only=True
            ),
        ]

    with fitting.float64():
        mine, plain = (fitting.compiled(fitting.network(), optimizer=keras.optimizers.Adam(0.05)) for _ in range(2))
        given = {"batch_size": 12, "epochs": 30, "validation_data": (X[:9], Y[:9])}
        fitting.in_job(mine, X, Y, callbacks=callbacks("mine"), **given)
        fitting.plainly(plain, X, Y, callbacks=callbacks("plain"), **given)
        fitting.assert_same(mine, plain)
        assert len(mine.history.epoch) < 30
        assert mine.stop_training
        assert len(set(mine.history.history["learning_rate"])) == 2
        for model, name in ((mine, "mine"), (plain, "plain")):
            model.load_weights(tmp_path / f"{name}.weights.h5")
        np.testing.assert_allclose(mine.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-9)
    heads = [(tmp_path / f"{name}.csv").read_text().splitlines() for name in ("mine", "plain")]
    assert len(heads[0]) == len(heads[1])
    assert heads[0][0] == heads[1][0]


def test_an_interrupted_fit_continues_from_its_backup_as_by_keras(tmp_path):
    told: list[tuple[int, int]] = []

    def look(control: Any, samples: int, done: int) -> None:
        told.append((samples, done))

    watch = kf.policy(lambda training: kf.control.always().call(look, training.job_samples, training.samples_done))

    interrupting = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: 1 / (epoch - 2))
    with fitting.float64():
        models = []
        for fit, name in ((fitting.in_job, "mine"), (fitting.plainly, "plain")):
            given = {"batch_size": 30, "epochs": 4, "shuffle": False}
            given |= {"policies": [watch()]} if fit is fitting.in_job else {}
            backup = keras.callbacks.BackupAndRestore(tmp_path / name)
            with pytest.raises(ZeroDivisionError):
                fit(fitting.compiled(fitting.network()), X, Y, callbacks=[backup, interrupting], **given)
            models.append(fitting.compiled(fitting.network()))
            backup = keras.callbacks.BackupAndRestore(tmp_path / name)
            fit(models[-1], X, Y, callbacks=[backup], **given)
            assert not (tmp_path / name).exists(), "it is removed when training has come to its end"
        fitting.assert_same(*models)
        assert models[0].history.epoch == [2, 3]
    # Of two runs of which the second has two epochs left; each begins to count anew.
    second = [place for place, (_, done) in enumerate(told) if not done][1]
    assert {samples for samples, _ in told[:second]} == {4 * fitting.SAMPLES}
    assert {samples for samples, _ in told[second:]} == {2 * fitting.SAMPLES}
    assert told[second:] == sorted(told[second:])


def test_a_stop_after_a_batch_takes_effect_one_step_later_and_ends_the_epoch_there():
    class Stopping(keras.callbacks.Callback):
        ended = -1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            batches.append(batch)
            self.model.stop_training = batch >= 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.ended = epoch

        def on_train_end(self, logs: Any = None) -> None:
            logged.append(logs)

    batches: list[int] = []
    logged: list[Any] = []
    stopping, model = Stopping(), fitting.compiled(fitting.network())
    history = fitting.in_job(model, X, Y, batch_size=10, epochs=4, callbacks=[stopping])
    assert batches == [0, 1, 2]
    assert stopping.ended == 0
    assert history.epoch == [0]
    assert logged == [{"loss": history.history["loss"][0]}]


def test_a_policy_that_stops_training_ends_the_epoch_there():
    after = kf.policy(lambda training: kf.control.always().when(training.step >= 3).stop())
    model = fitting.compiled(fitting.network())
    history = fitting.in_job(model, X, Y, batch_size=10, epochs=4, policies=[after()])
    assert history.epoch == [0]
    assert int(model.optimizer.iterations) in (3, 4)


@pytest.mark.parametrize("stops", [True, False], ids=["with a stop", "in the last step"])
def test_the_best_weights_are_those_that_on_train_end_and_the_user_find(stops, tmp_path, monkeypatch):
    """As with ``EarlyStopping(restore_best_weights=True)`` of Keras; the validation after a stop sees them, too."""
    monkeypatch.chdir(tmp_path)

    @kf.policy
    def early(training):
        at = kf.control.always()
        late = at.when(training.step == (7 if stops else 10))
        return at.when(training.step == 3).checkpoint("best"), late.restore("best"), *([late.stop()] if stops else [])

    class Watching(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(self.model.get_weights())

        def on_train_end(self, logs: Any = None) -> None:
            ended.append(self.model.get_weights())

    seen: list[Any] = []
    ended: list[Any] = []
    model = fitting.compiled(fitting.network(keras.layers.BatchNormalization()))
    given = {"batch_size": 10, "epochs": 2, "validation_data": (X, Y), "callbacks": [Watching()]}
    history = fitting.in_job(model, X, Y, policies=[early()], **given)
    assert len(seen) == (8 if stops else 10)
    for found in (ended[0], model.get_weights()):
        for one, best in zip(found, seen[3], strict=True):
            assert np.array_equal(one, best)
    if stops:
        assert history.history["val_loss"][-1] == pytest.approx(model.evaluate(X, Y, verbose=0))
    assert int(model.optimizer.iterations) == len(seen)


def test_no_epochs_at_all_leave_the_model_as_it_is():
    model = fitting.compiled(fitting.network())
    before = [np.asarray(one) for one in model.weights]
    assert fitting.in_job(model, X, Y, epochs=0).history == {}
    fitting.assert_same_variables(model.weights, before)


@pytest.mark.parametrize("per_execution", [1, 3])
def test_callbacks_are_called_per_execution_with_the_numbers_of_its_last_step(per_execution):
    with fitting.float64():
        (plain, each), mine, told = plain_network(), fitting.compiled(fitting.network(), metrics=["mae"]), Told()
        mine.steps_per_execution = per_execution
        fitting.in_job(mine, X, Y, callbacks=[told], **USUAL)
        fitting.assert_same(mine, plain)
    ends = [at for at, (batch, _) in enumerate(each.ended) if batch in (2, 5, 7)] if per_execution > 1 else range(16)
    assert told.begun == [batch for batch in each.begun if batch % per_execution == 0]
    assert [batch for batch, _ in told.ended] == [each.ended[at][0] for at in ends]
    for (_, logs), at in zip(told.ended, ends, strict=True):
        assert logs == pytest.approx(each.ended[at][1], rel=1e-8)


def test_logs_are_computed_when_a_callback_looks_and_are_those_of_their_step():
    mine, keeping = network_in_job()
    first, *_, last = keeping.kept
    assert all(isinstance(one, dict) for one in keeping.kept)
    assert last.get("loss") == pytest.approx(mine.history.history["loss"][-1])
    assert {**first} == dict(first)
    assert len(first) == 2
    assert first["loss"] != last["loss"]
