"""What the calls of a step tell the graph between two steps, in programs that nobody launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.policies import stop_on_nan
from kungfu.runtime.api import BarrierResult, Limits, StandaloneMembership, Terms
from kungfu.runtime.core.barrier import Decision, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import AGENT, Asked, Leave, Resize
from kungfu.training.loop import barrier
from tests.training.linear import Run, linear_run, points


class OnAHost(StandaloneMembership):
    """A job of one peer that knows of so many joiners on its host."""

    joiners: int | None = 0

    def host_joiners(self) -> int | None:
        return self.joiners


def run_on_a_host() -> tuple[Run, OnAHost]:
    membership = OnAHost()
    return linear_run(membership=membership), membership


def in_graph(run: Run) -> int:
    return int(run.training._run.graph_state.view.host_joiners)


def under_way(run: Run, target: int) -> None:
    """As after a barrier that asks for so many peers; 0 for none."""
    standing = run.training._run.standing
    standing.terms = replace(standing.terms, target_size=target)


def test_a_step_knows_of_the_joiners_that_were_there_when_it_was_called() -> None:
    run, membership = run_on_a_host()
    for membership.joiners in (0, 2, 2, 0):
        run.step(points(2))
        assert in_graph(run) == membership.joiners


def test_where_nobody_knows_of_joiners_there_is_one_while_a_change_is_under_way() -> None:
    run, membership = run_on_a_host()
    membership.joiners = None
    for target, told in ((0, 0), (3, 1), (3, 1), (0, 0)):
        under_way(run, target)
        run.step(points(2))
        assert in_graph(run) == told


class Growing(StandaloneMembership):
    """A job of one peer that decides as the job of several does, and keeps how many peers the agent is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int | None] = []
        self.outside, self.superseded = list[Asked](), list[tuple[str, str]]()

    def pop_external_request(self) -> Asked | None:
        return self.outside.pop() if self.outside else None

    def hold_barrier(self, state: Any, terms: Terms, *, requests: Any, adjust: Any, **more: Any) -> BarrierResult:
        decision = decide(BarrierInput(self.view, terms, Limits(1, 3), requests=requests), adjust=adjust)
        self.asked.append(decision.prepare)
        self.superseded += [(one.by, one.superseded_by) for one in decision.superseded]
        return BarrierResult(Decision(self.view, terms), decision, 0, sources=(0,))


def test_a_loss_that_is_no_number_ends_training_while_joiners_are_on_their_way() -> None:
    membership = Growing()
    run = linear_run(policies=[stop_on_nan(steps=2)], membership=membership)
    run.step(points(2))
    standing = run.training._run.standing
    barrier._put_in_force(run.training._run, replace(standing.terms, target_size=3))
    for _ in range(3):
        assert not run.training.stopped
        run.step(points(2) * np.float32(np.nan))
    # Two losses in a row, and the step on whose message that rides.
    assert (run.training.stopped, run.training.step_number) == (True, 4)
    assert (membership.asked, standing.terms.target_size) == ([1], 0), "the joiners are dismissed"


@pytest.mark.parametrize(
    ("older", "superseded"),
    [
        (Asked(Resize(3), "kungfu resize 3", 1, id="older"), [("kungfu resize 3", "kungfu resize 2")]),
        (Asked(Leave((5,), "now", 1), "kungfu scale-in 5", 1, id="older"), [("kungfu scale-in 5", "kungfu resize 2")]),
        (Asked(Resize(2), "kungfu resize 2", 1, id="newer"), []),
        (Asked(Leave((5,), "noticed", 1), "preemption notice", 1, id=AGENT), []),
    ],
)
def test_a_request_of_a_broken_barrier_hears_of_a_newer_one_from_outside(
    older: Asked, superseded: list[tuple[str, str]]
) -> None:
    newer, membership = Asked(Resize(2), "kungfu resize 2", id="newer"), Growing()
    run = linear_run(membership=membership)
    run.step(points(2))
    record = run.training._run
    membership.outside, record.pending.unanswered = [newer], (older,)
    barrier.hold(record)
    assert membership.superseded == superseded
    assert (membership.asked, record.terms.target_size) == ([2], 2)


def test_in_a_loop_in_the_graph_a_change_under_way_counts_as_a_joiner() -> None:
    run, membership = run_on_a_host()
    run.step(points(2))

    @tf.function
    def epoch(x: Any) -> None:
        for _ in range(2):
            run.step(x)

    epoch(tf.constant(points(2)))
    membership.joiners = 5
    under_way(run, 3)
    run.step(points(2))
    assert in_graph(run) == 1
