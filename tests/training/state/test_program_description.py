"""What of a program must be alike on all peers, and what may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import kungfu
from kungfu.compiler import compile_policies
from kungfu.policies import gns_batch
from kungfu.runtime.core.program_identity import Description, difference
from kungfu.training.state.program_description import describe, machine_in_words
from kungfu.training.state.registry import Registry


def network(width: int = 4) -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(width), keras.layers.Dense(1)])


def described(
    model: keras.Model | None = None,
    optimizer: Any = None,
    *,
    policies: Any = (),
    values: dict[str, Any] | None = None,
    samples: int = 10,
    **data: int,
) -> Description:
    model, optimizer, registry = model or network(), optimizer or keras.optimizers.SGD(0.1), Registry()
    optimizer.build(model.trainable_variables)
    for name, value in (values or {}).items():
        registry.register_variable(name, tf.Variable(value), kind="shared")
    return describe(compile_policies(policies), model, [optimizer], registry, {"samples": samples, "seed": 1, **data})


def told(one: Description, other: Description) -> str:
    return difference(one, other, names=("peer 0", "peer 1"))


def test_the_same_program_is_the_same_whatever_keras_calls_its_layers() -> None:
    one, other = described(network()), described(network())
    names = [[part.shown for part in each.parts] for each in (one, other)]
    assert names[0] != names[1], "Keras counts names on in one process"
    assert one.digest == other.digest


def compiled(model: keras.Model) -> keras.Model:
    model.compile("sgd", "mse")
    return model


def frozen() -> keras.Model:
    model = network()
    model.layers[0].trainable = False
    return model


def late_frozen() -> keras.Model:
    """A weight is frozen, which no config tells."""
    model = network()
    model.layers[0].kernel.trainable = False
    return model


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: described(network(5)), ("model: peer 0 has dense", ".units = 4, peer 1 has", ".units = 5")),
        (lambda: described(compiled(network())), ("compile(): peer 0 has loss = None, peer 1 has loss = 'mse'",)),
        (lambda: described(frozen()), (".trainable = True, peer 1 has", ".trainable = False")),
        (lambda: described(late_frozen()), ("float32(2, 4), trained", "float32(2, 4), not trained")),
        (lambda: described(optimizer=keras.optimizers.Adam()), ("optimizers: peer 0 has SGD, peer 1 has Adam",)),
        (lambda: described(values={"count": 1.0}), ("registered values: peer 1 has 'count', shared, float32()",)),
        (lambda: described(policies=[gns_batch(max_peers=3)]), ("policies: peer 1 has ", "gns_batch.py:")),
        (lambda: described(samples=11), ("data of training.batches(): peer 0 has samples 10, peer 1 has samples 11",)),
        (lambda: described(targets=1), ("order of the samples in the arrays of model.fit() or training.batches()",)),
        (lambda: described(weights=1), ("weights of the samples in the arrays", "peer 1 has weights 1")),
        (lambda: described(validation=1), ("validation data of model.fit()", "give what draws, shuffles")),
    ],
)
def test_what_differs_is_told(other: Any, words: tuple[str, ...]) -> None:
    found = told(described(), other())
    for word in words:
        assert word in found


def test_values_in_another_order_differ() -> None:
    one, other = described(values={"a": 1, "b": 1.0}), described(values={"b": 1.0, "a": 1})
    assert "in their order peer 0 has 'a', shared, int32() where peer 1 has 'b'" in told(one, other)


def test_versions_count() -> None:
    shown = [part.shown for part in described().parts if part.section == "versions"]
    assert [text.split()[0] for text in shown] == ["kungfu", "TensorFlow", "Keras", "NumPy"]
    assert shown[:2] == [f"kungfu {kungfu.__version__}", f"TensorFlow {tf.__version__}"]


def test_a_machine_is_told_by_its_threads_and_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx avx2 sse4_2\n")
    threads, processor = machine_in_words(cpuinfo).split(", ")
    assert processor == "Some CPU @ 2 GHz (avx2)"
    assert int(threads.split()[0]) >= 1
    assert machine_in_words(tmp_path / "nothing").split(", ")[1] != ""
