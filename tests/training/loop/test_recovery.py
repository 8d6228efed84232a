"""What becomes of an error that may be the loss of a peer; whole losses are in tests/jobs/test_failures.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu import control
from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.policy_definition import Policy
from kungfu.runtime.api import BarrierResult, StandaloneMembership
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.training.graph.model_average import ModelAverage
from kungfu.training.loop import barrier, recovery
from kungfu.training.loop.between_steps import left_pending
from kungfu.training.loop.step_calls import StepCalls
from tests.training.linear import linear_run
from tests.training.peers import on_peers

BATCH = np.ones([2, 2], np.float32)


def summed(attachment: LocalAttachment, *, tag: str) -> list[Any]:
    return attachment.all_reduce([[1.0], [2.0]], prescale=1.0, order=tf.Variable(0), tag=tag)


def meaning_of(error: tf.errors.OpError, run: Any, attachment: LocalAttachment) -> BaseException:
    """What `recover` raises for the error of a message, in a program that nobody launched."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - which one it is, is what the test asks
        recovery.recover(replace(run.training._run, attachment=attachment), error, where="in step 3")
    return raised.value


def test_an_error_of_the_programs_own_op_comes_out_as_it_is() -> None:
    error = tf.errors.InvalidArgumentError(None, None, "kungfu: peer rank=1 died during gradients")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        recovery.recover(linear_run().training._run, error, where="in step 3")
    assert raised.value is error, "nothing is read out of its text"
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "error", [PeerFailure("gone", ranks=[1], view=2), DeadlineExceeded("late", waiting_for=[1]), InternalError("ours")]
)
def test_alone_nobody_can_be_lost_and_the_error_is_the_programs(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        recovery.recover(linear_run().training._run, error)
    assert raised.value is error


def test_a_failed_message_means_what_the_attachment_has_noted() -> None:
    run = linear_run()

    def act(rank: int, attachment: LocalAttachment) -> BaseException | None:
        if rank == 1:
            attachment.close()
            return None
        with pytest.raises(tf.errors.UnavailableError) as failed:
            summed(attachment, tag="gradients")
        return meaning_of(failed.value, run, attachment)

    failure = on_peers(2, act)[0]
    assert isinstance(failure, PeerFailure)
    assert (failure.ranks, str(failure)) == ((1,), "in step 3: peer rank=1 left during gradients")


def test_a_peer_that_is_lost_between_two_steps_is_told_in_a_sentence() -> None:
    run = linear_run().training._run

    def act(rank: int, attachment: LocalAttachment) -> str:
        if rank == 1:
            attachment.close()
            return ""
        calls = StepCalls(replace(run, attachment=attachment))
        with pytest.raises(PeerFailure) as lost:
            calls.exchange(lambda peers: peers.total([tf.constant([1.0])]))
        return str(lost.value)

    assert on_peers(2, act)[0] == "between steps 0 and 1: peer rank=1 left during the exchange of values"


def test_peers_that_differ_are_no_loss_and_the_error_of_the_message_is_its_cause() -> None:
    runs = [linear_run(), linear_run()]

    def act(rank: int, attachment: LocalAttachment) -> tuple[Any, Any]:
        with pytest.raises(tf.errors.InternalError) as failed:
            summed(attachment, tag=f"message {rank}")
        return failed.value, meaning_of(failed.value, runs[rank], attachment)

    found = on_peers(2, act)
    for error, failure in found:
        assert isinstance(failure, InternalError)
        assert str(failure).startswith("in step 3: peers differ")
        assert failure.__cause__ is error


def test_a_barrier_that_failed_ends_loops_in_the_graph_and_is_raised_outside_of_it() -> None:
    run = linear_run()
    run.step(BATCH)
    error = ValueError("of a hook")
    recovery.keep(run.training._run, error)
    assert bool(run.training._run.graph_state.posts.halted.numpy())
    for go_on in (recovery.after_barrier, recovery.raise_barrier_failure):
        with pytest.raises(ValueError, match="of a hook") as raised:
            go_on(run.training._run)
        assert raised.value is error


def test_no_batch_is_trained_on_while_the_failure_of_a_barrier_is_open() -> None:
    run = linear_run()
    run.step(BATCH)
    before = run.weights.copy()
    recovery.keep(run.training._run, ValueError("of a hook"))
    assert run.step(BATCH) is run.training.SKIPPED
    assert (run.weights == before).all()


class Breaking(StandaloneMembership):
    """A job of one peer whose next barrier breaks, as where another peer is lost over it."""

    breaks = True

    def hold_barrier(self, *given: Any, **more: Any) -> BarrierResult:
        if self.breaks:
            self.breaks = False
            raise PeerFailure("gone", ranks=[1], view=1)
        return super().hold_barrier(*given, **more)


def regrouped(run: Any) -> None:
    """As after the loss over which a barrier broke, in a view of the same peer."""
    record = run.training._run
    record.standing.barrier_failure = None
    left_pending(record, record.membership.hold_barrier(None, record.terms), step=2)
    recovery._reset_graph(record)


def barriers_asked_for(run: Any) -> int:
    return int(run.training._run.graph_state.posts.changes.asked)


def test_after_a_loss_a_barrier_is_asked_for_where_one_broke_and_nowhere_else() -> None:
    run = linear_run(membership=Breaking())
    run.step(BATCH)
    record = run.training._run
    recovery._reset_graph(record)
    assert barriers_asked_for(run) == 0, "the loss was noticed in a step"
    with pytest.raises(PeerFailure):
        barrier.hold(record)
    recovery._reset_graph(record)
    assert barriers_asked_for(run) == 1, "nothing was asked of it, but it may have been held for joiners"
    barrier.hold(record)
    recovery._reset_graph(record)
    assert barriers_asked_for(run) == 1, "no other one has broken"


def test_a_value_that_a_hook_sets_in_a_barrier_that_breaks_is_set_once() -> None:
    def heat(control: Any) -> None:
        control.set_value("heat", 5.0)

    heats = Policy("heats", lambda t: control.every(1).until(t.step > 1).call(heat))
    run, own = linear_run(policies=[heats], membership=Breaking()), {}
    run.training.register("heat", lambda: own.get("heat", 0.0), lambda value: own.update(heat=value))
    run.step(BATCH)
    with pytest.raises(PeerFailure):
        run.step(BATCH)
    regrouped(run)
    run.step(BATCH)
    assert own == {"heat": 5.0}
    own["heat"] = 7.0
    for _ in range(2):
        run.step(BATCH)
    assert own == {"heat": 7.0}, "the program has changed it since"


@dataclass(frozen=True)
class Survivor:
    """A peer that has lost others: its weight, its samples since the last average, and if it has the new one."""

    weight: float
    samples: float = 0.0
    has_average: bool = False
    lost: int = 0
    is_source: bool = True


@pytest.mark.parametrize(
    ("survivors", "weight", "lost"),
    [
        # Of 20 samples since the last average, 12 were the survivors'.
        ([Survivor(1.0, 3.0), Survivor(2.0, 9.0)], (1.0 * 3 + 2.0 * 9) / 12, 8),
        # A second loss came after the second peer had averaged already, with the peer that is lost by now.
        ([Survivor(1.0, 3.0), Survivor(2.0, has_average=True, lost=5)], 2.0, 5),
        ([Survivor(3.0, has_average=True), Survivor(3.0, has_average=True)], 3.0, 0),
        # A joiner of the broken view has fetched a state, and has trained on nothing.
        ([Survivor(1.0, 3.0), Survivor(9.0, is_source=False), Survivor(2.0, 1.0)], (1.0 * 3 + 2.0) / 4, 16),
        # The loss came in the first step of the window, so no survivor has samples.
        ([Survivor(1.0), Survivor(2.0)], 1.5, 20),
    ],
    ids=["window", "averaged by one", "averaged by all", "joiner", "no samples"],
)
def test_survivors_average_what_they_hold(survivors: list[Survivor], weight: float, lost: int) -> None:
    def act(rank: int, attachment: LocalAttachment) -> tuple[float, int, list[float]]:
        mine, run = survivors[rank], linear_run().training._run
        models = ModelAverage(5, run.graph_state, attachment)
        variable = tf.Variable(mine.weight)
        models.shared = [variable]
        models.covers(None)
        run.graph_state.progress.step.assign(7)
        models.restart(at=7 if mine.has_average else 4)
        models.window.samples.assign(mine.samples)
        models.window.counted.assign(20)
        models.lost = mine.lost
        own = {"rank": rank, "size": len(survivors), "is_source": mine.is_source}
        recovery.average_survivors(replace(run, attachment=attachment, models=models), **own)
        assert models.is_in_force(7)
        return float(variable), models.lost, list(models.held())

    found = on_peers(len(survivors), act)
    assert len({one[0] for one in found}) == 1, "one model, bit for bit"
    assert found[0][0] == pytest.approx(weight)
    assert {one[1] for one in found} == {lost}
    assert all(one[2] == [0.0, 0] for one in found), "the next window begins"
