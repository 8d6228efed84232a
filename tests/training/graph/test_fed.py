"""What the program feeds between its steps: when it counts, how long it stands, and what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PolicyError, UsageError
from kungfu.runtime.attachment.choose import SoloAttachment
from tests.training.linear import Run, linear_run, points, shown


@kf.policy
def frugal(training):
    """Shows what was fed last as "price"."""
    return kf.control.always().when(training.fed("price", unit="dollars/hour") > 1e9).stop()


def price(run: Run) -> float:
    """What the policy saw in the last step."""
    return shown(run.training, "price")


def stepped(run: Run, *fed: float) -> list[float]:
    """A step after each of these was fed, and what the policy saw in it."""
    seen = []
    for one in fed:
        run.training.feed("price", one)
        run.step(points(2))
        seen.append(price(run))
    return seen


def test_it_is_not_known_until_it_is_fed_and_stands_until_it_is_fed_again() -> None:
    run = linear_run(policies=[frugal()])
    run.step(points(2))
    assert np.isnan(price(run))
    assert stepped(run, 2.5) == [2.5]
    run.step(points(2))
    assert price(run) == 2.5
    assert stepped(run, 1.25, 3.0) == [1.25, 3.0]
    assert run.training.traces() == 1


def test_what_is_fed_before_the_first_step_is_known_in_it_and_the_newest_counts() -> None:
    run = linear_run(policies=[frugal()])
    run.training.feed("price", 1.0)
    assert stepped(run, 2.0) == [2.0]


def test_what_is_fed_while_a_step_runs_rides_on_the_next_one() -> None:
    run = linear_run(policies=[frugal()])
    fed = run.training._run.graph_state.metrics.fed
    with tf.GradientTape():
        _, offers = fed.offered()  # a step reads, and sends
        run.training.feed("price", 4.0)
        fed.carry(offers)
    run.step(points(2))
    assert price(run) == 4.0


@kf.policy
def sending(training):
    """Sends a message of its own after the gradients, whose sum no rule waits for before it fires."""
    spread = kf.ops.all_reduce(kf.ops.where(training.rank == 0, training.mean_loss, 0.0), "sum")
    return kf.control.always().call(lambda control, spread: None, spread)


class Losing(SoloAttachment):
    """Fails in the messages of one tag while ``fails``, once all has run that does not wait for them."""

    def __init__(self, tag: str, moved: Callable[[], bool]) -> None:
        self.tag, self.moved, self.fails = tag, moved, True

    def all_reduce(self, values: Sequence[Any], *, prescale: Any, order: Any, tag: str) -> list[Any]:
        sums = super().all_reduce(values, prescale=prescale, order=order, tag=tag)
        if not tag.startswith(self.tag):
            return sums
        received = tf.py_function(self.receive, sums, [one.dtype for one in sums])
        return [tf.ensure_shape(one, given.shape) for one, given in zip(received, sums, strict=True)]

    def receive(self, *sums: Any) -> Sequence[Any]:
        if not self.fails:
            return sums
        patience = time.monotonic() + 1.0  # nothing moves where all waits for the message
        while not self.moved() and time.monotonic() < patience:
            time.sleep(0.01)
        raise RuntimeError("a peer is lost")


@pytest.mark.parametrize("tag", ["gradients", "message"])
def test_a_message_that_fails_has_carried_nothing_and_updated_nothing(tag: str) -> None:
    run = linear_run(policies=[frugal(), sending()])
    fed = run.training._run.graph_state.metrics.fed
    losing = Losing(tag, lambda: bool(run.weights.any()) or bool(fed._carried.numpy().any()))
    run.training._run = replace(run.training._run, attachment=losing)
    assert run.training._run.plan.exchanges
    run.training.feed("price", 4.0)
    with pytest.raises(tf.errors.OpError, match="a peer is lost"):
        run.step(points(2))
    assert (fed._carried.numpy().tolist(), run.weights.tolist()) == ([0], [0.0, 0.0])
    losing.fails = False
    run.step(points(2))
    assert price(run) == 4.0
    assert run.weights.any()


@cache
def stepping() -> Run:
    """A run that goes on from test to test; each feeds a number of its own, or another one before."""
    return linear_run(policies=[frugal()])


@pytest.mark.parametrize("samples", [2, 0])
def test_another_thread_may_feed_and_a_peer_without_samples_sends_it(samples: int) -> None:
    run = stepping()
    assert stepped(run, 1.0) == [1.0]
    feeder = threading.Thread(target=run.training.feed, args=("price", 7.0))
    feeder.start()
    feeder.join(60)
    run.step(points(samples))
    assert price(run) == 7.0


@pytest.mark.parametrize("value", [3, np.float64(3), np.int32(3), np.asarray(3.0), tf.constant(3)])
def test_every_kind_of_number_is_taken(value: Any) -> None:
    assert stepped(stepping(), 1.0, value) == [1.0, 3.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, 1e39, 10**400])
def test_a_number_that_is_not_finite_is_refused_with_policy_and_line(value: Any) -> None:
    run = linear_run(policies=[frugal()])
    with pytest.raises(
        PolicyError, match=r"it takes a finite number.*policy 'frugal' declares it \(.*test_fed.py:\d+\)"
    ) as caught:
        run.training.feed("price", value)
    assert caught.value.policy == "frugal"
    path, _, line = caught.value.origin.rpartition(":")
    with open(path, encoding="utf-8") as file:
        assert file.readlines()[int(line) - 1].strip() == 'run.training.feed("price", value)'
    assert np.isnan(run.training._run.graph_state.metrics.fed.offered()[0]["price"])


@pytest.mark.parametrize(
    "value", ["2.5", True, None, [1.0], np.ones(1), object(), np.bool_(True), np.asarray(True), tf.constant(True)]
)
def test_what_is_no_number_is_refused_with_its_type(value: Any) -> None:
    run = linear_run(policies=[frugal()])
    with pytest.raises(PolicyError, match=f"a {type(value).__name__}: it takes a number"):
        run.training.feed("price", value)


def test_a_name_that_no_policy_uses_goes_nowhere_and_is_told_once(capsys: Any) -> None:
    run = linear_run(policies=[frugal()])
    run.training.feed("prise", 1.0)
    run.training.feed("prise", float("nan"))
    printed = capsys.readouterr().err
    assert printed.count("training.feed('prise')") == 1
    assert "names that are used: 'price'" in printed


def test_it_is_refused_inside_of_a_step() -> None:
    run = linear_run(policies=[frugal()])

    @tf.function
    def traced() -> None:
        run.training.feed("price", 1.0)

    with pytest.raises(UsageError, match=r"between two steps.*training.publish"):
        traced()


def test_it_is_refused_after_training_was_over() -> None:
    run = linear_run(policies=[frugal()])
    run.step(points(2))
    run.training.finish()
    with pytest.raises(UsageError, match="after training was over"):
        run.training.feed("price", 1.0)
