"""What happens in this peer when another one dies.

The loss is noticed in one of four places:

1. Before a step, because the job has given up a peer of the view (`Recovery.lasting_failure`).
2. In a step, because its message fails, and with it the compiled step, before any variable was assigned.
3. In the barrier after a step. That runs inside the graph, where an exception would lose its type: the failure is kept
   (`Recovery.keep`), the step ends with a code that says so, and outside of the graph `Recovery.after_barrier` goes on.
4. In the last barrier, once training is over.

From each of them `Recovery.recover` leads on, or raises:

- It finds out what the error is. The attachment knows from its own notes whether a message failed, why, and over which
  ranks; nothing is read out of a text. An error that is no loss of peers is the program's, and is raised.
- It leaves the attachment, so that peers that still wait in the message see this one go, and notice the loss too.
- It reports the loss to the job and waits for the view of those who live, with the state of a peer that is furthest on:
  `kungfu.runtime.peer.membership`. Where too few live, that raises, and the program ends.
- It enters that view, and leaves the graph as the next step needs it.

The batch at hand was cut for a view that is no more: its step gives ``SKIPPED``, and the loader cuts the next one at
the position that all agree on, so that each sample is trained on once.
"""

from __future__ import annotations

import math
import time
import zlib
from typing import NoReturn, final

import numpy as np
import tensorflow as tf

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.runtime.api import NoticedLoss
from kungfu.training.barrier import Barrier
from kungfu.training.graph.variable_io import write_variable

# Stages of a `LossReport` that is sent before the peers have exchanged anything after their last step.
_IN_BARRIER, _AFTER_STEP = 0, 1


@final
class Recovery:
    """The way from a noticed loss to the next step, for one peer.

    Args:
        barrier: Holds this peer's place, its terms, and the requests of a barrier that broke.
    """

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self.barrier_failure: BaseException | None = None  # of the last barrier, until this peer has recovered from it
        self._stage = _AFTER_STEP  # between two steps; see `LossReport`

    # ---- noticed ---------------------------------------------------------------------------------------------------

    def lasting_failure(self) -> PeerFailure | None:
        """Before a step: the loss of a peer that the job has given up, whose messages may still come.

        Cost:
            A look at a field where nobody was given up; the training step asks each time.
        """
        barrier = self._barrier
        if (failure := barrier.membership.lasting_failure()) is None:
            return None
        barrier.attachment.leave()
        return failure.prefixed(f"before step {self._barrier.steps() + 1}: ")

    def exchanges(self) -> None:
        """Between two steps the peers begin to exchange something, or have come to its end here.

        What the program did before may differ by peer; and this peer is further on than one where it has not ended.
        """
        self._stage += 1

    def step_done(self, *, in_barrier: bool) -> None:
        """A step is done, and nothing was exchanged after it; its barrier may have failed on this peer alone."""
        self._stage = _IN_BARRIER if in_barrier else _AFTER_STEP

    def keep(self, error: BaseException) -> None:
        """Inside the graph: the barrier failed. A loop of the program's in the graph runs no more steps."""
        self.barrier_failure = error
        write_variable(self._barrier.graph_state.posts.halted, True)

    # ---- what comes of it ------------------------------------------------------------------------------------------

    def recover(self, error: BaseException, *, where: str = "") -> None:
        """Goes on without the peers that were lost.

        Args:
            error: TensorFlow's for a message that failed, or one of ours.
            where: For the former: where this peer was, as "in step 7" or "between steps 7 and 8".

        Raises:
            BaseException: ``error`` itself where it is no loss of peers, or this program runs alone; the attachment's
                failure where it is one of kungfu's, and none of a peer.
            KungfuError: Too few peers live.

        Cost:
            A report to the agent, new connections between those who live, and the state of the peer that is furthest
            on where this one has another: see ``benchmarks.failure``.
        """
        failure = self._meaning(error, where)
        # Neither a peer that is gone nor one that did not come: the program, or kungfu itself, is wrong.
        if not isinstance(failure, PeerFailure | DeadlineExceeded):
            raise failure from (error if failure is not error else None)
        self._regroup(failure)
        self.barrier_failure = None

    def after_barrier(self) -> None:
        """Outside of the graph, after a step whose barrier failed: as `recover`."""
        assert self.barrier_failure is not None
        self.recover(self.barrier_failure, where=self._in_barrier())

    def raise_barrier_failure(self) -> NoReturn:
        """A barrier failed within a loop of the program's in the graph: there is no step to go on from, so it ends."""
        kept = self.barrier_failure
        assert kept is not None
        failure = self._meaning(kept, self._in_barrier())
        raise failure from (kept if failure is not kept else None)

    def _in_barrier(self) -> str:
        return f"in the barrier after step {self._barrier.steps()}"

    def _meaning(self, error: BaseException, where: str) -> BaseException:
        """The error of ours that TensorFlow's stands for; any other one is what it is."""
        # The barrier itself, or the job, says what is wrong in errors of ours.
        if not isinstance(error, tf.errors.OpError):
            return error
        attachment = self._barrier.attachment
        found = attachment.failure_of(error)
        # An op of the user's own failed, not a message.
        if found is None:
            return error
        # Left now, and not when the next view opens: a failed attachment may keep its sockets open, and peers waiting.
        attachment.leave()
        return found.prefixed(f"{where}: ")

    def _regroup(self, failure: KungfuError) -> None:
        """Reports the loss, and enters the view of those who live."""
        barrier = self._barrier
        barrier.step_timer.lost()
        started, done = time.monotonic(), barrier.steps()
        loss = NoticedLoss(failure, done, barrier.terms, self._stage, self._digest())
        # Not all peers have done the same steps, so what their shadows asked for cannot be compared.
        barrier.shadows.clear()
        result = barrier.membership.recover(barrier.state, loss, adjust=barrier.adjusted_terms)
        registered_before = self._registered_before(gives=result.rank in result.sources)
        barrier.enter(result, result.after.terms)
        step, self._stage = barrier.steps(), _AFTER_STEP
        barrier.between_steps.entered(result, step=step)
        self._reset_graph()
        write_variable(barrier.graph_state.times.rescale_seconds, barrier.step_timer.recovered())
        event_log, total_s = barrier.event_log, time.monotonic() - started
        event_log.recovered(
            result,
            step=step,
            redone=max(0, done - step),
            registered_before=registered_before,
            stop=barrier.step_timer.stop,
        )
        event_log.spanned("recovery", result, step=step, total_s=total_s)

    def _registered_before(self, *, gives: bool) -> int | None:
        """The step before which the registered values were read, where all continue with those of a new joiner."""
        barrier = self._barrier
        pending = barrier.between_steps.pending
        is_new = pending is not None and pending.takes_values and barrier.between_steps.registry.has_agreed_values
        return barrier.state.registered_before() if is_new and gives else None

    def _digest(self) -> int:
        """Of the replicated state, where an exchange has begun: those that hold the same may all give it to others."""
        if self._stage <= _AFTER_STEP:
            return 0
        words = np.array(list(self._barrier.state.digest().values()), np.uint64)
        return zlib.crc32(words.tobytes())

    def _reset_graph(self) -> None:
        """Leaves the graph's variables as the first step of the new view needs them."""
        barrier, graph_state = self._barrier, self._barrier.graph_state
        # The seconds since the last message are no step's.
        write_variable(graph_state.times.synchronised, math.nan)
        write_variable(graph_state.posts.halted, False)
        # The loss was noticed inside a barrier: its requests are still open, and the next one is asked for the same.
        if barrier.unanswered is not None:
            graph_state.posts.changes.ask()
        barrier.ask_for_departures()
        barrier.take_over_stop()
