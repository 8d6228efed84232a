"""The numbers of a program: what makes two peers train something else, and in what two processes of it may differ."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kungfu.training.graph.learning_rate import make_learning_rate
from kungfu.training.state.program_entries import compile_entries, model_entries, optimizer_entries

Layer, Dense, Dropout, Input = keras.layers.Layer, keras.layers.Dense, keras.layers.Dropout, keras.Input
SGD, Adam, LossScaleOptimizer = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.LossScaleOptimizer
Decay = keras.optimizers.schedules.ExponentialDecay
BinaryCrossentropy, Mean, Precision = keras.losses.BinaryCrossentropy, keras.metrics.Mean, keras.metrics.Precision
L2, Lambda = keras.regularizers.L2, keras.layers.Lambda
WEIGHT, calls = 0.5, 0


def differing(entries: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What people are shown of the entries that only one of two programs has, one beside the other."""
    one, other = list(entries), list(others)
    lacking = ([shown for shown, decides in mine if decides not in {text for _, text in its}] for mine, its in
               ((one, other), (other, one)))  # fmt: skip
    found = list(zip(*lacking, strict=True))
    assert bool(found) == ([text for _, text in one] != [text for _, text in other])
    return found


def of_model(*layers: Any) -> Iterable[tuple[str, str]]:
    return model_entries(keras.Sequential([Input((4,)), *layers]))


def of_compile(loss: Any = "mse", **given: Any) -> Iterable[tuple[str, str]]:
    model = keras.Sequential([Input((4,)), Dense(1)])
    model.compile("sgd", loss, **given)
    return compile_entries(model)


def of_optimizer(optimizer: Any) -> Iterable[tuple[str, str]]:
    optimizer.build([keras.Variable([0.0])])
    return optimizer_entries(optimizer, number=0)


class Keeping(Layer):
    """A layer whose config Keras knows by itself, where it can serialise the value."""

    def __init__(self, value: Any, **given: Any) -> None:
        super().__init__(**given)
        self.value, self.began_at = value, object()

    def call(self, x: Any) -> Any:
        return x


class Focal(keras.losses.Loss):
    """A loss without a config of its own, which counts its traces."""

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma, self.traces = gamma, 0

    def call(self, y: Any, predicted: Any) -> Any:
        self.traces += 1
        return (y - predicted) ** self.gamma


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule as in many programs, without a config."""

    def __init__(self, steps: int) -> None:
        self.steps, self.width = steps, tf.constant(64.0)

    def __call__(self, step: Any) -> Any:
        return tf.minimum(1.0, step / self.steps)


def closure(weight: float, *, inner: Callable[[Any], Any] = abs) -> Callable[[Any, Any], Any]:
    def loss(y: Any, predicted: Any) -> Any:
        return weight * inner(y - predicted)

    return loss


def counting(start: int) -> Callable[[Any, Any], Any]:
    """A loss that counts its traces."""

    def loss(y: Any, predicted: Any) -> Any:
        nonlocal start
        start += 1
        return y - predicted

    return loss


def with_default(weight: float) -> Callable[[Any, Any], Any]:
    return lambda y, predicted, weight=weight: weight * (y - predicted)


def functional(factor: float = 0.5, *, swapped: bool = False, axis: int = -1) -> keras.Model:
    first, second = Input((3,)), Input((3,))
    one, other = Dense(3, activation="tanh")(first), Dense(3)(second) * factor
    joined = keras.layers.Subtract()([other, one] if swapped else [one, other])
    return keras.Model([first, second], keras.ops.mean(joined, axis=axis, keepdims=True))


@pytest.mark.parametrize(
    ("made", "values", "entry"),
    [
        (lambda one: of_model(Dense(2), Dropout(one)), (0.1, 0.2), "rate = {}"),
        (lambda one: of_model(Keeping(one)), (0.25, 0.75), "value = {}"),
        (lambda one: of_model(Dense(2, one)), ("relu", "gelu"), "activation = {!r}"),
        (lambda one: of_model(Dense(2, kernel_regularizer=L2(one))), (0.1, 0.2), "kernel_regularizer.l2 = {}"),
        (lambda one: of_model(keras.layers.ReLU(max_value=one)), (1, 2), "max_value = {}"),
        (lambda one: of_model(Dense(2, dtype=one)), ("mixed_float16", "mixed_bfloat16"), "dtype = {}"),
        (lambda one: of_model(keras.layers.Normalization(mean=one, variance=1.0)), (0.5, 0.7), "mean = {}"),
        (lambda one: model_entries(functional(one)), (0.5, 0.7), "arguments.0.1 = {}"),
        (lambda one: model_entries(functional(axis=one)), (1, -1), "axis = {}"),
        (lambda one: of_compile(loss_weights=[one]), (0.3, 0.4), "loss_weights.0 = {}"),
        (lambda one: of_compile(BinaryCrossentropy(label_smoothing=one)), (0.1, 0.2), "loss.label_smoothing = {}"),
        (lambda one: of_compile(Focal(one)), (1.5, 2.5), "loss.gamma = {}"),
        (lambda one: of_compile(closure(one)), (0.5, 0.7), "loss.weight = {}"),
        (lambda one: of_compile(with_default(one)), (0.5, 0.7), "loss.weight = {}"),
        (lambda one: of_compile(partial(closure, one)), (0.5, 0.7), "loss.arguments.0.0 = {}"),
        (lambda one: of_compile(metrics=[Precision(one)]), (0.3, 0.4), "metrics.0.thresholds = {}"),
        (lambda one: of_compile(steps_per_execution=one), (2, 4), "steps_per_execution = {}"),
        (lambda one: of_optimizer(SGD(momentum=one)), (0.91, 0.87), "SGD.momentum = {}"),
        (lambda one: of_optimizer(SGD(clipnorm=one)), (1, None), "SGD.clipnorm = {}"),
        (lambda one: of_optimizer(LossScaleOptimizer(Adam(beta_1=one))), (0.8, 0.9), "inner_optimizer.beta_1 = {}"),
        (lambda one: of_optimizer(SGD(Decay(0.1, one, 0.5))), (10, 20), "decay_steps = {}"),
        (lambda one: of_optimizer(SGD(Warmup(one))), (10, 20), "learning_rate.steps = {}"),
    ],
)
def test_a_number_of_the_program_that_differs_is_shown_by_its_path(made: Any, values: Any, entry: str) -> None:
    (shown,) = differing(*map(made, values))
    for text, value in zip(shown, values, strict=True):
        assert text.endswith(entry.format(value)), text


@pytest.mark.parametrize(
    ("made", "function", "another", "name"),
    [
        (lambda one: of_model(Lambda(one)), lambda x: x + 1, lambda x: x + 2, "function.code"),
        (lambda one: of_model(Lambda(one)), lambda x: (lambda: x + 1)(), lambda x: (lambda: x + 2)(), "function.code"),
        (lambda one: of_model(Dense(2, one)), lambda x: x + 1, lambda x: x + 2, "activation.code"),
        (of_compile, lambda y, p: y - p, lambda y, p: p - y, "loss.code"),
        (lambda one: of_compile(closure(1.0, inner=one)), lambda x: x + 1, lambda x: x + 2, "loss.inner.code"),
        (lambda one: of_optimizer(SGD(one)), lambda: 0.1, lambda: 0.2, "learning_rate.code"),
    ],
)
def test_functions_differ_by_their_bytecode_also_inside(made: Any, function: Any, another: Any, name: str) -> None:
    ((mine, its),) = differing(made(function), made(another))
    assert f"{name} = Python 3." in mine
    assert f"{name} = Python 3." in its
    assert mine != its


def test_how_a_functional_model_is_wired_counts() -> None:
    assert differing(model_entries(functional()), model_entries(functional(swapped=True)))


def test_many_texts_count_in_their_order_as_those_of_a_set_that_was_made_a_list() -> None:
    words = [f"word {number}" for number in range(500)]
    lookups = [of_model(keras.layers.StringLookup(vocabulary=one)) for one in (words, words[::-1])]
    by_name = [{word: float(number) for number, word in enumerate(one)} for one in (words, words[::-1])]
    assert differing(*(of_compile(loss_weights=one) for one in by_name))
    ((mine, its),) = differing(*lookups)
    assert "vocabulary = 500 values from 'word 0' to 'word 499'" in mine
    assert "from 'word 499'" in its


def read_global(y: Any, predicted: Any) -> Any:
    return WEIGHT * (y - predicted)


def test_a_number_of_the_module_that_a_function_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(of_compile(read_global))
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", 0.7)
    assert differing(before, of_compile(read_global)) == [("loss.WEIGHT = 0.5", "loss.WEIGHT = 0.7")]


# ---- what two processes of one program may differ in -----------------------------------------------------------------


def assert_same(one: Iterable[tuple[str, str]], other: Iterable[tuple[str, str]]) -> None:
    assert differing(one, other) == []


def test_names_that_keras_counts_by_itself_do_not_count() -> None:
    first, second = functional(), functional()
    assert first.name != second.name
    assert_same(model_entries(first), model_entries(second))
    for model in (first, second):
        model.compile("sgd", {model.output_names[0]: "mse"}, metrics={model.output_names[0]: [Mean("x")]})
    assert first.output_names != second.output_names
    assert_same(compile_entries(first), compile_entries(second))
    activated = [[Dense(2, "tanh"), keras.layers.Activation("relu")] for _ in range(2)]
    activated[0][1].name, activated[1][1].name = "activation", "activation_1"
    assert_same(of_model(*activated[0]), of_model(*activated[1]))


def test_a_model_in_the_config_of_a_layer_does_not_count_by_names_either() -> None:
    class Holding(Layer):
        def __init__(self, model: Any, **given: Any) -> None:
            super().__init__(**given)
            self._held = model

        def call(self, x: Any) -> Any:
            return self._held([x[:, :3], x[:, :3]])

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "model": keras.saving.serialize_keras_object(self._held)}

    one, other = functional(), functional()
    assert_same(of_model(Holding(one)), of_model(Holding(other)))
    assert differing(of_model(Holding(one)), of_model(Holding(functional(0.7))))


@pytest.mark.parametrize(
    ("made", "one", "other"),
    [
        (lambda seed: of_model(Dropout(0.1, seed=seed)), 1, 2),
        (lambda spread: of_model(Dense(2, kernel_initializer=keras.initializers.RandomNormal(spread))), 0.1, 0.2),
        (lambda value: of_model(Keeping(value)), lambda x: x, lambda x: x + 1),
        (lambda value: of_model(Keeping(value)), 0.5, 0.5),
        (lambda value: of_model(Keeping(value)), "/here/words", "/tmp/there/7f"),
        (of_compile, object, object),
        (lambda start: of_compile(counting(start)), 1, 7),
        (of_compile, lambda y, p, seed=1: y - p, lambda y, p, seed=2: y - p),
        (lambda compiles: of_compile(jit_compile=compiles), False, "auto"),
        (lambda rate: of_optimizer(SGD(rate)), 0.1, 0.4),
        (lambda rate: of_optimizer(SGD(rate)), 0.1 + 0.2, 0.3),
        (lambda inner: of_optimizer(LossScaleOptimizer(inner())), SGD, SGD),
        (lambda words: of_model(keras.layers.StringLookup(vocabulary=np.array(words))), ["a", "b"], ["a", "b"]),
    ],
)
def test_seeds_first_weights_state_and_what_cannot_be_serialised_do_not_count(made: Any, one: Any, other: Any) -> None:
    assert_same(made(one), made(other))


def test_numbers_that_round_in_another_way_on_another_machine_do_not_count() -> None:
    many = np.random.default_rng(0).normal(size=300)
    for one in (0.3, [*many[:3]], [*many]):
        found = [of_compile(loss_weights=given) for given in (one, np.multiply(one, 1 + 1e-12).tolist())]
        assert_same(*found)


def test_a_loss_that_was_traced_and_an_optimizer_that_has_trained_are_as_new() -> None:
    used = Focal(2.0)
    used.traces = 5
    assert_same(of_compile(used), of_compile(Focal(2.0)))
    optimizer = SGD(Decay(0.1, 10, 0.5), momentum=0.9)
    optimizer.build([keras.Variable([0.0])])
    for _ in range(2):  # in each of two fits a policy sets the rate
        make_learning_rate([optimizer])
    optimizer.apply([tf.constant([1.0])])
    assert_same(optimizer_entries(optimizer, number=0), of_optimizer(SGD(Decay(0.1, 10, 0.5), momentum=0.9)))


def test_a_rate_that_a_callback_has_set_and_a_momentum_that_is_a_variable_are_state() -> None:
    plateau = SGD(0.1, momentum=0.9)
    plateau.learning_rate = 0.05  # as ReduceLROnPlateau does it
    assert_same(of_optimizer(plateau), of_optimizer(SGD(0.1, momentum=0.9)))
    optimizers = SGD(momentum=0.9), SGD(momentum=0.9)
    for one, value in zip(optimizers, (0.9, 0.5), strict=True):
        one.momentum = tf.Variable(value)
    assert_same(*map(of_optimizer, optimizers))


def test_a_large_array_is_not_made_a_list() -> None:
    large = keras.layers.Embedding(1000, 100, embeddings_initializer=keras.initializers.Constant(np.zeros((1000, 100))))
    entries = model_entries(SimpleNamespace(_flatten_layers=lambda: [large]))
    assert [shown for shown, _ in entries] == [f"{large.name} = Embedding"]


PROGRAM = """
import keras
from kungfu.training.state.program_entries import compile_entries, model_entries, optimizer_entries

def squashed(x):
    return x * (0.5 if str(x.dtype) in {"float16", "float32", "bfloat16", "float64"} else 1.0)

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(3, activation=squashed), keras.layers.Lambda(lambda x: x + 1)]
        self.file, self.handle = __file__, object()

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x

def loss(y, predicted, *, folder=__file__):
    return keras.ops.mean(abs(y - predicted))

model = Net()
model.compile(keras.optimizers.SGD(lambda: 0.1), loss, metrics=[loss, "mae"])
model(keras.ops.ones((1, 3)))
entries = [*model_entries(model), *compile_entries(model), *optimizer_entries(model.optimizer, number=0)]
"""


def test_the_same_program_under_two_paths_is_the_same() -> None:
    told: list[list[str]] = []
    for file, lines in (("/here/a.py", 0), ("/there/b.py", 30)):
        found: dict[str, Any] = {"__name__": "__main__", "__file__": file}
        exec(compile("\n" * lines + PROGRAM, file, "exec"), found)
        told.append([decides for _, decides in found["entries"]])
    assert len(told[0]) > 20
    assert told[0] == told[1]


def test_the_order_of_a_set_in_a_function_does_not_count() -> None:
    """The hashes of texts are other ones in each process; these of numbers show it in one."""
    assert [*{0, 8}] != [*{8, 0}]
    assert_same(of_compile(lambda y, p: p in {0, 8}), of_compile(lambda y, p: p in {8, 0}))
