"""What the step publishes: in the step, in functions and branches of it, over micro-batches; and what is refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PolicyError, UsageError
from tests.training.linear import linear_model, linear_run, points, shown


def watching(*, dtype: Any = "float32", name: str = "score") -> Any:
    """A policy that shows what is published, over all peers by samples, under its name and "seen"."""

    @kf.policy
    def watch(training):
        own = training.published(name, dtype=dtype)
        number = kf.ops.cast(own, "float32")
        seen = kf.ops.weighted_mean(number, training.samples).named(f"{name}_seen")
        return kf.control.always().when(seen > 1e9).stop()

    return watch()


def run(policies: Any, body: Any) -> tuple[Any, Any]:
    """A run whose step calls ``body(training, x)`` before it averages: the training and the step."""
    made = linear_run(policies=policies, before=body)
    return made.training, made.step


def called(training: Any, step: Any, *batches: Any) -> list[float]:
    """These steps, and what the policy saw in each."""
    seen = []
    for batch in batches:
        step(batch)
        seen.append(shown(training, "score_seen"))
    return seen


def test_a_published_number_reaches_the_rules_of_its_own_step() -> None:
    training, step = run([watching()], lambda training, x: training.publish("score", tf.reduce_sum(x)))
    assert called(training, step, points(2), points(3)) == [3.0, 6.0]


def test_it_may_come_from_a_function_of_the_step_which_is_used_outside_of_it_too() -> None:
    parts: list[Any] = []

    @tf.function
    def forward(x: Any) -> Any:
        parts[0].publish("score", tf.reduce_sum(x))
        return x

    training, step = run([watching()], lambda training, x: forward(x))
    parts.append(training)
    forward(tf.constant(points(4)))  # it is traced outside of the step first
    assert called(training, step, points(4), points(2)) == [10.0, 3.0]
    forward(tf.constant(points(9)))
    assert called(training, step, points(2)) == [3.0]
    assert training.traces() == 1


def test_a_branch_that_is_not_taken_publishes_what_is_not_known() -> None:
    def body(training: Any, x: Any) -> None:
        if tf.shape(x)[0] > 2:
            training.publish("score", 1.0)

    training, step = run([watching()], body)
    seen = called(training, step, points(3), points(2), points(3))
    np.testing.assert_array_equal(seen, [1.0, np.nan, 1.0])


EACH = {"int64": (7, 7.0), "bool": (True, 1.0), "float32": (0.5, 0.5), "half": (tf.constant(0.25, tf.float16), 0.25)}


@cache
def published_of_each() -> dict[str, float]:
    """What a policy saw of a number of each dtype, which are published in one step."""

    def body(training: Any, x: Any) -> None:
        for name, (value, _) in EACH.items():
            training.publish(name, value)

    training, step = run([watching(dtype="float32" if name == "half" else name, name=name) for name in EACH], body)
    step(points(2))
    return {name: shown(training, f"{name}_seen") for name in EACH}


@pytest.mark.parametrize("dtype", EACH)
def test_each_dtype_is_published_and_a_float_of_another_width_is_cast(dtype: str) -> None:
    assert published_of_each()[dtype] == EACH[dtype][1]


def test_a_float_is_averaged_over_micro_batches_and_of_others_the_last_counts() -> None:

    def body(training: Any, x: Any) -> None:
        training.publish("score", tf.reduce_mean(x[:, 0]))
        training.publish("count", tf.shape(x)[0])

    training, step = run([watching(), watching(dtype="int64", name="count")], body)
    seen = []
    batches = training.batches(points(5), batch_size=5, epochs=2, seed=0, max_local_batch_size=2)
    for number, x in enumerate(batches, start=1):
        step(x)
        if number % 3 == 0:  # the last micro-batch of a step
            seen.append((shown(training, "score_seen"), shown(training, "count_seen")))
    assert seen == [(2.0, 1.0)] * 2
    assert training.traces() == 1


def test_the_last_micro_batch_with_samples_counts() -> None:

    def body(training: Any, x: Any) -> None:
        training.publish("score", tf.reduce_mean(x[:, 0]))
        training.publish("count", tf.shape(x)[0])
        training.publish("even", tf.equal(tf.shape(x)[0] % 2, 0))

    kinds = {"score": "float32", "count": "int64", "even": "bool"}
    training, step = run([watching(dtype=dtype, name=name) for name, dtype in kinds.items()], body)
    step(next(iter(training.batches(points(5), batch_size=5, epochs=2, seed=0, max_local_batch_size=5))))
    compiled, seen = training._calls._compiled, []
    # The shares of three steps; what stands for an empty micro-batch is one sample of another peer's.
    for counts in ((2, 3, 0), (4, 0, 0), (0, 0, 0)):
        for place, count in enumerate(counts):
            compiled((place, len(counts), int(count == 0)), [tf.constant(points(count or 1))])
        seen.append([shown(training, f"{name}_seen") for name in kinds])
    np.testing.assert_allclose(seen, [[0.8, 3.0, 0.0], [1.5, 4.0, 1.0], [np.nan, np.nan, np.nan]], rtol=1e-6)


def test_a_name_that_no_policy_uses_leaves_no_op_behind() -> None:
    model = linear_model()
    training = kf.attach(model, keras.optimizers.SGD(1.0))

    @tf.function
    def publishing(x: Any) -> Any:
        training.publish("score", x)
        return x

    graph = publishing.get_concrete_function(tf.constant(1.0)).graph
    assert not graph.captures
    assert {op.type for op in graph.get_operations()} == {"Placeholder", "Identity"}


def refused(policies: Any, body: Any) -> PolicyError:
    _, step = run(policies, body)
    with pytest.raises(PolicyError) as caught:
        step(points(2))
    return caught.value


def line_of(error: PolicyError) -> tuple[str, str]:
    """The file and the text of the line that an error names."""
    path, _, number = error.origin.rpartition(":")
    with open(path, encoding="utf-8") as file:
        return path, file.readlines()[int(number) - 1].strip()


def test_a_name_that_is_never_published_is_refused_at_the_first_step_with_what_was() -> None:
    error = refused([watching()], lambda training, x: training.publish("scoer", 1.0))
    assert "training.publish('score') is not called in the step before training.average()" in str(error)
    assert "published there: 'scoer'" in str(error)
    assert (error.policy, line_of(error)) == ("watch", (__file__, "own = training.published(name, dtype=dtype)"))


def test_what_is_published_after_the_message_has_left_is_refused() -> None:
    def after(training: Any, gradients: Any) -> None:
        training.publish("score", tf.linalg.global_norm(gradients))

    with pytest.raises(PolicyError, match=r"before training.average\(\).*policy 'watch' declares it"):
        linear_run(policies=[watching()], after=after).step(points(2))


def publish_twice(training: Any, x: Any) -> None:
    training.publish("score", 1.0)
    training.publish("score", 2.0)


def test_a_name_that_is_published_twice_is_refused_with_both_lines() -> None:
    error = refused([watching()], publish_twice)
    assert "is called a second time in one step, after " in str(error)
    assert line_of(error) == (__file__, 'training.publish("score", 2.0)')
    assert str(error).count(__file__) == 3


def publish_vector(training: Any, x: Any) -> None:
    training.publish("score", x[:, 0])


def test_another_shape_is_refused_with_the_users_line() -> None:
    error = refused([watching()], publish_vector)
    assert "was given a tensor of shape (None,): it takes one number" in str(error)
    assert line_of(error) == (__file__, 'training.publish("score", x[:, 0])')


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 1), ("int64", 1.0), ("bool", 1), ("float32", True), ("int64", True)]
)
def test_another_dtype_is_refused_with_both(dtype: str, value: Any) -> None:
    error = refused([watching(dtype=dtype)], lambda training, x: training.publish("score", tf.constant(value)))
    assert f"was given a {tf.constant(value).dtype.name}, and is declared as {dtype}" in str(error)


def test_outside_of_a_step_it_is_refused_with_what_to_write() -> None:
    training, _ = run([watching()], lambda training, x: training.publish("score", 1.0))
    with pytest.raises(UsageError, match=r"outside of a function marked @training.step.*training.feed"):
        training.publish("score", 1.0)


def test_inside_a_function_that_xla_compiles_it_is_refused() -> None:
    def body(training: Any, x: Any) -> None:
        tf.function(lambda: training.publish("score", 1.0), jit_compile=True)()

    assert "jit_compile=True" in str(refused([watching()], body))


def test_a_shadow_reads_what_is_published() -> None:
    @kf.policy
    def cautious(training):
        score = kf.ops.all_reduce(training.published("score"), "mean")
        return kf.control.always().when(score > 0.5).set_learning_rate(0.5)

    training, step = run([kf.shadow(cautious())], lambda training, x: training.publish("score", 1.0))
    step(points(2))
    assert training._run.graph_state.rules.shadows.fired.numpy().tolist() == [True]
