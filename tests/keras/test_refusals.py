"""What a fit in a job cannot do yet is told before its first step, with the way out."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PolicyError, UsageError
from kungfu.policies import schedule
from kungfu.training.graph.combined_metrics import _ADDITIVE
from tests.keras.fitting import compiled, in_job, network, points, run_under_kungfu


class OwnFit(keras.Model):
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return super().fit(*args, **kwargs)


class Largest(keras.metrics.Metric):
    """A state that does not add up."""

    def update_state(self, *_: Any, **__: Any) -> None:
        pass

    def result(self) -> Any:
        return 0.0


class Own(keras.metrics.Mean):
    """Inherits sums, and may keep something else."""

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        super().update_state(predicted)


def model_of(kind: Any) -> Any:
    given = keras.Input((3,))
    return kind(given, keras.layers.Dense(1)(given))


class Batches(keras.utils.PyDataset):
    def __init__(self, sizes: list[int] | None) -> None:
        super().__init__()
        self.sizes = sizes

    @property
    def num_batches(self) -> int | None:
        return None if self.sizes is None else len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        size = 5 if self.sizes is None else self.sizes[index]
        return X[:size], Y[:size]


class Uncounted(keras.utils.PyDataset):
    def __getitem__(self, index: int) -> Any:
        return X, Y


def gives(*batches: Any) -> Any:
    yield from batches


def recurrent(**given: Any) -> Any:
    """Of sequences; a stateful one has to be told how many there are in a batch."""
    layers = [keras.layers.Reshape((3, 1)), keras.layers.Bidirectional(keras.layers.LSTM(2, **given))]
    return keras.Sequential([keras.Input((3,), batch_size=10), *layers, keras.layers.Dense(1)])


X, Y = points()
ROWS = np.array([np.zeros(1 + number % 2) for number in range(50)], dtype=object)
WHOLE = tf.data.Dataset.from_tensor_slices((X, Y))
MODELS = [
    (lambda: compiled(network(), run_eagerly=True), r"run_eagerly=True\): policies and the average"),
    (lambda: compiled(model_of(OwnFit)), r"OwnFit\.fit\(\) is the program's own"),
    (lambda: compiled(network(), keras.losses.MeanSquaredError("none")), "has the reduction 'none'"),
    (lambda: compiled(network(), [keras.losses.MeanSquaredError(None)]), "has the reduction None"),
    (lambda: compiled(recurrent(stateful=True)), r"the layer '\w*lstm\w*' is stateful=True"),
    (lambda: compiled(recurrent(), metrics=["mae"]), r"of 10 samples and no others: its input '\w+'"),
    (lambda: compiled(network(), metrics=[Largest(name="largest")]), r"the metric 'largest' \(Largest\)"),
    (lambda: compiled(network(), metrics=[Own(name="own")]), r"the metric 'own' \(Own\)"),
]
ARGUMENTS = [
    ({"x": WHOLE.batch(8), "y": Y}, r"fit\(y=\.\.\.\) with a tf\.data\.Dataset"),
    ({"x": WHOLE.batch(8), "validation_split": 0.5}, r"fit\(validation_split=\.\.\.\) with a tf\.data\.Dataset"),
    ({"x": WHOLE.batch(8).repeat()}, "a Dataset without an end: say steps_per_epoch"),
    ({"x": WHOLE.batch(8), "steps_per_epoch": 4, "epochs": 2}, "takes 8 batches of a Dataset that has 7"),
    ({"x": WHOLE.batch(8).take(0)}, "a Dataset without elements"),
    ({"x": tf.data.Dataset.range(5)}, "whose elements are single samples"),
    ({"x": tf.data.Dataset.from_tensors(tf.ragged.constant([[1.0], []]))}, "a Dataset of RaggedTensorSpec"),
    ({"x": Batches([])}, "Batches, a PyDataset without batches"),
    ({"x": Batches([5, 7])}, r"Batches, a PyDataset whose batch 2 has 7 samples where 5 were expected"),
    ({"x": Batches([5, 3, 5]), "shuffle": False}, r"Batches, a PyDataset whose batch 2 has 3 samples where 5"),
    ({"x": Batches(None)}, "Batches, a PyDataset without an end: say steps_per_epoch"),
    ({"x": Uncounted()}, "Uncounted, a PyDataset that does not say how many batches it has"),
    ({"x": Batches([5]), "y": Y}, r"fit\(y=\.\.\.\) with a PyDataset"),
    ({"x": gives((X, Y))}, r"steps_per_epoch=None\) with a generator under kungfu-run: it does not tell how many"),
    ({"x": gives(), "steps_per_epoch": 2}, "a generator that gives no batch"),
    ({"x": gives((X, Y)), "steps_per_epoch": 1, "class_weight": {0: 1.0}}, r"fit\(class_weight=\.\.\.\) with a gene"),
    ({"x": gives((X, Y, Y, Y)), "steps_per_epoch": 1}, "which gave 4 things: a batch is x"),
    ({"x": gives((X, 1.0)), "steps_per_epoch": 1}, "a single number where a batch has one entry a sample"),
    ({"x": gives((X, Y[:7])), "steps_per_epoch": 1}, r"arrays of \[7, 50\] samples in one batch"),
    (
        {"x": gives((tf.ragged.constant([[1.0], []]), Y)), "steps_per_epoch": 1},
        "a generator under kungfu-run, which gave a RaggedT",
    ),
    ({"x": gives((ROWS, Y)), "steps_per_epoch": 1}, r"an array of Python objects \(ndarray\), as rows of different"),
    (
        {"x": gives((X, Y), (X[:, :2], Y)), "steps_per_epoch": 2},
        r"a batch of \(\(\(2,\), 'float64'\).* after one of \(\(\(3,\), 'float64'\)",
    ),
    ({"x": iter([(X, Y)])}, "list_iterator under kungfu-run"),
    ({"x": None}, "was given no x"),
    ({"x": X, "y": Y[:9]}, r"arrays of \[50, 9\] samples"),
    ({"x": X, "y": Y, "batch_size": 0.5}, r"batch_size=0\.5\): must be an integer"),
    ({"x": X, "y": Y, "batch_size": 10, "steps_per_epoch": 2.5}, r"steps_per_epoch=2\.5\): must be an integer of at"),
    ({"x": X, "y": Y, "validation_split": 1.5}, r"validation_split=1\.5\): must lie between 0 and 1"),
    ({"x": X, "y": Y, "validation_split": 0.999}, "leaves one part of 50 samples empty"),
    ({"x": X, "y": Y, "class_weight": {0: 1.0}, "sample_weight": np.ones(50)}, "both class_weight and sample_weight"),
    ({"x": X, "class_weight": {0: 1.0}}, r"class_weight=\.\.\.\) takes a y that is one array"),
    ({"x": tf.ragged.constant([[1.0], []]), "y": Y}, "RaggedTensor under kungfu-run"),
    ({"x": X, "y": Y, "epochs": -1}, r"epochs=-1\): must be an integer of at least 0"),
    ({"x": X, "y": Y, "callbacks": [keras.callbacks.CallbackList([])]}, "was given a CallbackList under kungfu-run"),
]


@pytest.mark.parametrize(("make", "told"), MODELS)
def test_a_model_is_refused(make, told):
    with pytest.raises(UsageError, match=told):
        in_job(make(), X, Y)


@pytest.mark.parametrize(("given", "told"), ARGUMENTS)
def test_arguments_of_fit_are_refused(given, told):
    with pytest.raises(UsageError, match=told):
        in_job(compiled(network()), **given)


def test_alone_with_policies_only_the_step_has_to_run_as_a_graph():
    never = kf.policy(lambda training: kf.control.always().when(training.mean_loss < -1.0).stop())()
    model = compiled(network(), run_eagerly=True)
    kf.keras.attach(model, policies=[never])
    with pytest.raises(UsageError, match="run_eagerly"):
        model.fit(X, Y, verbose=0)
    kf.keras.attach(model)
    assert len(model.fit(X, Y, verbose=0).epoch) == 1


def test_alone_a_fit_of_the_programs_own_runs_as_without_attach():
    model = compiled(model_of(OwnFit))
    kf.keras.attach(model)
    assert model.fit(X, Y, epochs=2, verbose=0).epoch == [0, 1]
    given = kf.data.records(range(50), lambda row: (X[row], Y[row]))
    assert model.fit(given, batch_size=10, epochs=3, initial_epoch=1, verbose=0).epoch == [1, 2]
    with pytest.raises(UsageError, match=r"validation_data"):
        model.fit(X, Y, validation_data=given)


def test_a_policy_of_the_job_that_excludes_one_of_the_program_is_refused(monkeypatch):
    run_under_kungfu(monkeypatch, most=4, policies=("schedule({5: 2})",))
    with pytest.raises(PolicyError, match=r"\(.*test_refusals\.py:\d+; kungfu-run --policy 'schedule\({5: 2}\)'\)"):
        kf.keras.attach(compiled(network()), policies=[schedule({1: 3})])


@pytest.mark.slow
def test_a_job_has_no_step_beside_its_fits(monkeypatch):
    model = compiled(network())
    in_job(model, X, Y, epochs=1)
    in_job(model, X, Y, epochs=1)
    run_under_kungfu(monkeypatch)
    with pytest.raises(UsageError, match=r"model\.train_on_batch\(\) was called under kungfu-run"):
        model.train_on_batch(X, Y)
    monkeypatch.undo()
    model.train_on_batch(X, Y)


def test_every_metric_of_keras_is_known_to_add_up_or_refused():
    kinds = [one for one in vars(keras.metrics).values() if isinstance(one, type)]
    unknown = {one.__name__ for one in kinds if not issubclass(one, _ADDITIVE)}
    assert unknown == {"Metric"}


@pytest.mark.parametrize("where", ["validation of a job", "validation", "evaluate", "predict"])
def test_samples_that_only_training_takes_are_refused_elsewhere_with_the_way_out(where):
    given, model = kf.data.records(range(50), lambda row: (X[row], Y[row])), compiled(network())
    kf.keras.attach(model)
    calls = {
        "validation of a job": lambda: in_job(model, X, Y, validation_data=given),
        "validation": lambda: model.fit(X, Y, validation_data=given),
        "evaluate": lambda: model.evaluate(given),
        "predict": lambda: model.predict(x=given),
    }
    with pytest.raises(UsageError, match=r"was given LoadedRecords of kf\.data, .*: give its \.dataset\(batch_size\)"):
        calls[where]()
    assert not int(model.optimizer.iterations), "before the first step"
