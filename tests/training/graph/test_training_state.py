"""Which variables are shared, averaged and own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.state.buffers import digests
from kungfu.runtime.state.variables import memory_of
from kungfu.training.graph.training_state import (
    StateClasses,
    TrainingState,
    checksum_of,
    classify,
    differing_variables,
    plant_seeds,
)
from tests.training.linear import linear_model


def mixed_model():
    frozen = keras.layers.Dense(3, name="frozen")
    normal = keras.layers.BatchNormalization(name="normal")
    model = linear_model(frozen, normal, keras.layers.Dropout(0.5), keras.layers.Dropout(0.5))
    frozen.trainable = False
    return model


def test_a_model_is_sorted_into_shared_averaged_and_own():
    model, optimizer = mixed_model(), keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0)
    classes = classify(model, [optimizer], {"progress/step": step})
    shared = list(classes.shared)
    weights = {f"model/linear/{name}" for name in ("frozen/kernel", "frozen/bias", "normal/gamma", "normal/beta")}
    assert weights <= set(shared)
    assert [name for name in shared if "momentum" in name] == [name for name in shared if name.endswith("momentum")]
    assert sum("momentum" in name for name in shared) == 3, "gamma, beta and the last kernel have slots"
    assert sum("learning_rate" in name for name in shared) == 1
    assert shared[-1] == "progress/step"
    assert sorted(classes.averaged) == ["model/linear/normal/moving_mean", "model/linear/normal/moving_variance"]
    assert len(classes.local) == 2
    assert not {*classes.shared} & {*classes.averaged, *classes.local}


def test_statistics_stay_averaged_where_their_layer_is_frozen():
    model = mixed_model()
    model.get_layer("normal").trainable = False
    classes = classify(model, [], {})
    assert len(classes.averaged) == 2
    assert {"model/linear/normal/gamma", "model/linear/normal/beta"} <= set(classes.shared)


def test_variables_under_one_path_are_numbered():
    class Holder:
        variables = tuple(tf.Variable(value, name="twin") for value in (1.0, 2.0, 3.0))

    empty = keras.Sequential([keras.Input((1,))])
    first, *others = classify(empty, [Holder()], {}).shared
    assert others == [f"{first}:1", f"{first}:2"], "the names by which messages and checkpoints know them"


def test_seeds_differ_between_peers_and_generators_and_are_the_same_again():
    def planted(peer, seed=7):
        model = mixed_model()
        classes = classify(model, [], {})
        plant_seeds(classes, seed=seed, peer=peer)
        return [tuple(np.asarray(one).tolist()) for one in classes.local.values()]

    states = [planted(peer) for peer in range(3)]
    assert len({state for peer in states for state in peer}) == 6
    assert planted(1) == states[1]
    assert planted(1, seed=8) != states[1]


def test_the_state_is_carried_over_byte_by_byte_in_any_slices():
    giver, taker = states(fill=3.0), states(fill=0.0)
    content = giver.readable()
    assert taker.digest() != giver.digest()
    with taker.writable() as memory:
        for start in range(0, content.total_bytes, 7):
            memory.write(start, content.read(start, min(start + 7, content.total_bytes)))
    assert taker.digest() == giver.digest()
    assert bool(taker.classes.shared["policy/flag"])
    assert np.all(taker.classes.averaged["model/linear/normal/moving_mean"].numpy() == 3.0)


def states(*, fill):
    model = mixed_model()
    for variable in model.weights:
        variable.assign(tf.fill(variable.shape, fill))
    odd = {"policy/flag": tf.Variable(fill > 0), "progress/step": tf.Variable(int(fill), dtype=tf.int64)}
    return TrainingState(classify(model, [], odd), on_rescaled=lambda: None)


def test_what_is_lent_stays_as_it_is_while_training_goes_on():
    state = states(fill=1.0)
    memory = state.readable()
    before = memory.read(0, memory.total_bytes)
    next(iter(state.classes.shared.values())).assign_add(tf.ones([2, 3]))
    assert memory.read(0, memory.total_bytes) == before
    after = state.readable()
    assert after.read(0, after.total_bytes) != before


def test_the_digest_names_every_shared_variable_and_sees_one_bit():
    state = states(fill=1.0)
    before = state.digest()
    assert set(before) == set(state.classes.shared)
    variable = state.classes.shared["model/linear/frozen/bias"]
    variable.assign(np.nextafter(variable.numpy(), np.float32(2)))
    after = state.digest()
    assert [name for name in after if after[name] != before[name]] == ["model/linear/frozen/bias"]


def test_a_sampled_digest_sees_a_change_in_its_turn_only():
    large = {"model/large": tf.Variable(tf.zeros([1 << 18]))}
    state = TrainingState(StateClasses(large, {}, {}), on_rescaled=lambda: None)
    before = [state.sampled_digest(turn) for turn in range(32)]
    large["model/large"].scatter_nd_update([[100_000]], [1.0])
    seen = [turn for turn in range(32) if state.sampled_digest(turn) != before[turn]]
    assert seen == [100_000 * 32 // (1 << 18)]


def found(peers: list[list[list[float]]]) -> list[list[int]]:
    """What each of the peers finds that hold these variables."""
    held = [[tf.Variable(one, dtype=tf.float32) for one in peer] for peer in peers]
    told: list[list[tf.Tensor]] = []

    def listen(tensors):
        told.append(list(tensors))
        return tensors

    for variables in held:
        differing_variables(variables, size=1, total=listen)
    sums = [tf.add_n(list(column)) for column in zip(*told, strict=True)]
    return [differing_variables(variables, size=len(peers), total=lambda _: sums) for variables in held]


def test_one_peer_that_differs_is_enough_and_all_know_where() -> None:
    same, zero, nan = [1.0, 2.0], [0.0], [float("nan")]
    peers = [[same, zero, nan], [same, [-0.0], nan], [same, zero, nan]]
    assert found(peers) == [[1]] * 3, "NaN is equal to itself here, and 0 is not -0: bits are compared"


@given(st.integers(1, 5).flatmap(lambda size: st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3),
                                                       min_size=size, max_size=size)))  # fmt: skip
def test_all_peers_agree_with_what_is_seen_from_outside(values: list[list[int]]) -> None:
    peers = [[[float(one)] for one in peer] for peer in values]
    differ = [place for place, column in enumerate(zip(*values, strict=True)) if len(set(column)) > 1]
    assert found(peers) == [differ] * len(peers)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_any_bit_of_any_variable_changes_the_checksum(place):
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3, dtype=tf.int64), tf.Variable(True)]
    before = checksum_of(variables)
    variables[place].assign([tf.constant([1.0, np.nextafter(np.float32(2.0), 3)]), 2, False][place])
    assert checksum_of(variables) != before


@pytest.mark.parametrize("size", [2, 256])
def test_digests_of_any_bits_are_summed_without_overflow(size: int) -> None:
    words = np.array(digests(memory_of([tf.Variable([1.0]), tf.Variable([2.0])])), np.uint64)
    assert words.max() > 2**60, "large enough to show it"
    peers = [[[1.0], [2.0]]] * (size - 1)
    assert found([*peers, [[1.0], [3.0]]]) == [[1]] * size
