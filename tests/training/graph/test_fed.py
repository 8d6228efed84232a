"""What the program feeds between its steps: when it counts, how long it stands, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PolicyError, UsageError
from tests.training.linear import Run, linear_run, points


@kf.policy
def frugal(training):
    """Shows what was fed last as "price"."""
    return kf.control.always().when(training.fed("price", unit="dollars/hour") > 1e9).stop()


def price(run: Run) -> float:
    """What the policy saw in the last step."""
    record = run.training._runner.graph_state.metrics.step_record
    return float(record.metrics(record.row.numpy())["price"])


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
    fed = run.training._runner.graph_state.metrics.fed
    with tf.GradientTape():
        _, offers = fed.offered()  # a step reads, and sends
        run.training.feed("price", 4.0)
        fed.carry(offers)
    run.step(points(2))
    assert price(run) == 4.0


def test_a_message_that_fails_has_carried_nothing() -> None:
    run = linear_run(policies=[frugal()])
    fed = run.training._runner.graph_state.metrics.fed
    run.training.feed("price", 4.0)
    fed.offered()
    (values, _) = fed.offered()
    assert values["price"].numpy() == 4.0


def test_another_thread_may_feed() -> None:
    run = linear_run(policies=[frugal()])
    run.step(points(2))
    feeder = threading.Thread(target=run.training.feed, args=("price", 7.0))
    feeder.start()
    feeder.join(60)
    run.step(points(2))
    assert price(run) == 7.0


def test_a_peer_without_samples_sends_what_it_was_fed() -> None:
    run = linear_run(policies=[frugal()])
    run.step(points(2))
    run.training.feed("price", 7.0)
    run.step(points(0))
    assert price(run) == 7.0


@pytest.mark.parametrize("value", [3, np.float64(3), np.int32(3), np.asarray(3.0), tf.constant(3)])
def test_every_kind_of_number_is_taken(value: Any) -> None:
    run = linear_run(policies=[frugal()])
    assert stepped(run, value) == [3.0]


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
    assert np.isnan(run.training._runner.graph_state.metrics.fed.offered()[0]["price"])


@pytest.mark.parametrize("value", ["2.5", True, None, [1.0], np.ones(1), object()])
def test_what_is_no_number_is_refused_with_its_type(value: Any) -> None:
    run = linear_run(policies=[frugal()])
    with pytest.raises(PolicyError, match=f"a {type(value).__name__}: it takes a number"):
        run.training.feed("price", value)


def test_a_name_that_no_policy_uses_goes_nowhere_and_is_told_once(capsys: Any) -> None:
    run = linear_run(policies=[frugal()])
    run.training.feed("prise", 1.0)
    run.training.feed("prise", float("nan"))
    told = capsys.readouterr().err
    assert told.count("training.feed('prise')") == 1
    assert "names that are used: 'price'" in told


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
