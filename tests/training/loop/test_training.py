"""The object that attach gives, alone: what a program may and may not do with it, and what a type checker knows."""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from mypy import api

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.policies import gns_batch, schedule
from tests.training.linear import linear_model, linear_run, points


def attached():
    model = linear_model()
    return model, kf.attach(model, keras.optimizers.SGD(1.0))


@cache
def stepping():
    """A run that has done a step, and is told of more that it refuses."""
    run = linear_run()
    run.step(points(4))
    return run


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (points(2).astype(float), r"tensor 1 of 1 is float64 of shape \(2, 2\), and was float32 of shape \(any, 2\)"),
        (np.zeros((4, 3), np.float32), r"is float32 of shape \(4, 3\), and was float32 of shape \(any, 2\)"),
        (np.zeros(4, np.float32), r"is float32 of shape \(4\)"),
        ((points(2), points(2)), "a batch of 2 tensors, and its first one had 1"),
        (tf.ragged.constant([[1.0], [1.0, 2.0]]), r"a RaggedTensor.*ragged.to_tensor\(\)"),
        (keras.optimizers.SGD(), "was given SGD: close over what does not change"),
    ],
    ids=["type", "shape", "rank", "structure", "ragged", "no tensor"],
)
def test_a_batch_of_another_kind_than_the_first_is_told_without_the_tensors(batch, message):
    run = stepping()
    with pytest.raises(UsageError, match=message) as refused:
        run.step(batch)
    assert len(str(refused.value)) < 400
    run.step(points(3))
    assert run.training.traces() == 1


def test_a_step_that_xla_would_have_to_compile_is_refused_with_the_way_out():
    model, training = attached()

    @training.step
    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        training.average(tape.gradient(loss, model.trainable_variables), loss=loss)

    with pytest.raises(UsageError, match=r"training.average\(\) was called inside a tf.function\(jit_compile=True\)"):
        step(points(2))


def test_a_loop_of_steps_under_xla_is_refused():
    run = stepping()
    with pytest.raises(UsageError, match=r"the step 'step' was called inside a tf.function\(jit_compile=True\)"):
        tf.function(lambda x: run.step(x), jit_compile=True)(tf.constant(points(2)))


def test_a_step_whose_first_trace_makes_a_variable_averages_once():
    _, training = attached()
    made = []

    @training.step
    def step(x):
        if not made:
            made.append(tf.Variable(0))
        made[0].assign_add(1)
        return training.average([tf.reduce_sum(x)], loss=0.0)[0]

    assert [float(step(points(2))) for _ in range(2)] == [3.0, 3.0]
    assert int(made[0]) == 2
    step(points(2)[:0])
    assert int(made[0]) == 2, "put back, as every variable of the program's"


def test_a_step_after_the_end_is_refused():
    run = linear_run()
    for x in run.training.batches(points(4), batch_size=2, epochs=1, seed=0):
        run.step(x)
    with pytest.raises(UsageError, match="over"):
        run.step(points(2))


def test_alone_the_rank_is_0_the_size_1_and_a_second_step_is_refused():
    run = stepping()
    with pytest.raises(UsageError, match="one step"):
        run.training.step(lambda x: None)
    assert (run.training.rank, run.training.size, run.training.left) == (0, 1, False)


@pytest.mark.parametrize(
    "policy",
    [
        gns_batch(max_peers=4, every=2),
        schedule({0: 3, 2: 1}),
        kf.at_most(gns_batch(max_peers=4, every=1), schedule({3: 2})),
        kf.first(schedule({3: 2}), schedule({5: 4})),
    ],
)
def test_a_policy_on_a_program_that_runs_alone_changes_nothing_and_breaks_nothing(policy):
    run = linear_run(policies=[policy])
    for x in run.training.batches(points(12), batch_size=3, epochs=2, seed=0):
        run.step(x)
    assert run.training.size == 1
    assert run.training.traces() == 1


def test_a_hook_is_called_with_its_control_and_agreed_values():
    calls = []

    def hook(control, loss, step):
        control.barrier()
        control.rescale(7)
        calls.append((control.size, control.step, control.wanted, step))

    calling = kf.policy(lambda training: kf.control.every(2).call(hook, training.mean_loss, training.step))
    run = linear_run(policies=[calling()])
    run.steps(5)
    assert calls == [(1, 2, 7, 2.0), (1, 4, 7, 4.0)]
    assert run.training.size == 1


def test_an_error_of_a_hook_keeps_its_type():
    def hook(control):
        raise LookupError("of the hook")

    run = linear_run(policies=[kf.policy(lambda training: kf.control.every(1).call(hook))()])
    run.step(points(2))
    with pytest.raises(LookupError, match="of the hook"):
        run.step(points(2))


def test_a_first_call_that_fails_can_be_made_again():
    _, training = attached()
    wrong = [True]

    @training.step
    def step(x):
        if wrong[0]:
            raise ValueError("not yet")
        training.average([tf.constant(1.0)], loss=0.0)
        return x

    with pytest.raises(ValueError, match="not yet"):
        step(points(2))
    wrong[0] = False
    assert step(points(2)).shape == (2, 2)


def test_the_order_of_the_samples_in_arrays_is_compared_with_that_of_other_peers():
    """By the targets of ``(x, y)``, of which each peer may change the inputs; else by all arrays."""
    x, y, order = points(40), np.sin(np.arange(40.0)), np.random.default_rng(0).permutation(40)

    def compared(data):
        _, training = attached()
        training.batches(data, batch_size=4, epochs=1, seed=3)
        described = training._run.declared.data
        assert (described["samples"], described["seed"]) == (40, 3)
        return described["targets"]

    assert compared((x, y)) == compared((x + 1.0, y)) != compared((x, y[order]))
    assert compared((x, np.zeros(40))) != compared((x[order], np.zeros(40)))
    assert compared({"x": x, "y": y}) == compared({"x": x, "y": y}) != compared({"x": x[order], "y": y})
    assert compared([x]) == compared(x) != compared(x[order])


# ---- what a type checker, and so an editor, knows of a marked step and of the average --------------------------------

PROGRAM = """
import kungfu as kf

def program(training: kf.Training) -> None:
    @training.step
    def step(x: int, *, scale: float = 1.0) -> str:
        reveal_type(training.average({"w": [1.0]}, loss=0.5))
        return "done"

    reveal_type(step)
    result = step(1, scale=2.0)
    if result is not training.SKIPPED:
        reveal_type(result)
    step("one")
"""


def checked(path: Path, *options: str) -> tuple[int, list[str], str]:
    """What the type checker says: its exit status, what it has to say of this file, and all of it."""
    try:
        out, err, status = api.run([str(path), "--config-file", "pyproject.toml", *options])
    except sqlite3.Error as error:  # of its cache
        return 2, [], repr(error)
    messages = [line.partition(": ")[2] for line in out.splitlines() if line.startswith(str(path))]
    return status, messages, out + err


@pytest.mark.slow
def test_a_marked_step_keeps_its_signature_and_an_average_its_structure(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    # Of a file with the same text, wherever it is, the cache would repeat what was told, under the path that it had.
    path.write_text(f"# {path}\n{PROGRAM}")
    # With the cache of the linter, which has read all of kungfu before; a linter that runs now may have locked it.
    status, messages, printed = checked(path)
    if status == 2:
        status, messages, printed = checked(path, "--cache-dir", str(tmp_path / "cache"))
    assert (status, len(messages)) == (1, 4), printed
    assert '"dict[str, list[float]]"' in messages[0], printed
    assert '"def (x: int, *, scale: float =) -> str | kungfu.training.loop.step_calls.Skipped"' in messages[1]
    assert '"str"' in messages[2], "after the test for SKIPPED the result is what the function returns"
    assert "incompatible type" in messages[3]
