"""Recovery of this peer when another one dies.

The loss is noticed in one of four places:

1. Before a step, because the job has given up a peer of the view (`lasting_failure`).
2. In a step, because its message fails, and with it the compiled step, before any variable was assigned.
3. In the barrier after a step. That runs inside the graph, where an exception would lose its type: the failure is kept
   (`keep`), the step ends with a code that says so, and outside of the graph `after_barrier` continues.
4. In the last barrier, once training is over.

From each of them `recover` leads on, or raises:

- It finds out what the error is. The attachment knows from its own notes whether a message failed, why, and over which
  ranks; nothing is read out of a text. An error that is no loss of peers is the program's, and is raised.
- It leaves the attachment, so that peers that still wait in the message see this one go, and notice the loss too.
- It reports the loss to the job and waits for the view of the survivors, with the state of a peer that is furthest on:
  `kungfu.runtime.peer.membership`. Where too few live, that raises, and the program ends.
- It enters that view, and leaves the graph as the next step needs it.

The batch at hand was cut for a view that is no more: its step gives ``SKIPPED``, and the loader cuts the next one at
the position that all agree on, so that each sample is trained on once.
"""

from __future__ import annotations

import time
import zlib
from functools import partial
from typing import NoReturn

import numpy as np
import tensorflow as tf

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.runtime.api import NoticedLoss
from kungfu.training.graph.variable_io import write_variable
from kungfu.training.loop import barrier
from kungfu.training.loop.between_steps import forget_message_time, left_pending
from kungfu.training.run import AFTER_STEP, Run

# ---- noticed ---------------------------------------------------------------------------------------------------


def lasting_failure(run: Run) -> PeerFailure | None:
    """Before a step: the loss of a peer that the job has given up, whose messages may still come.

    Cost:
        A look at a field if no peer was given up; the training step asks each time.
    """
    if (failure := run.membership.lasting_failure()) is None:
        return None
    run.attachment.leave()
    return failure.prefixed(f"before step {run.steps() + 1}: ")


def advance_stage(run: Run) -> None:
    """Notes that an exchange between two steps begins, or has come to its end, on this peer.

    What the program did before it may differ by peer; and a peer on which it has ended is further on.
    """
    run.standing.stage += 1


def keep(run: Run, error: BaseException) -> None:
    """Inside the graph: the barrier failed. A loop of the program's in the graph runs no more steps."""
    run.standing.barrier_failure = error
    write_variable(run.graph_state.posts.halted, True)


# ---- what comes of it ------------------------------------------------------------------------------------------------


def recover(run: Run, error: BaseException, *, where: str = "") -> None:
    """Goes on without the peers that were lost.

    Args:
        error: TensorFlow's for a message that failed, or one of ours.
        where: For the former: where this peer was, as "in step 7" or "between steps 7 and 8".

    Raises:
        BaseException: ``error`` itself where it is no loss of peers, or this program runs alone; the attachment's
            failure where it is one of kungfu's, and none of a peer.
        KungfuError: Too few peers live.

    Cost:
        A report to the agent, new connections between the survivors, and the state of the peer that is furthest
        on where this one has another: see ``benchmarks.failure``.
    """
    failure = _meaning(run, error, where)
    # Neither a peer that is gone nor one that did not come: the program, or kungfu itself, is wrong.
    if not isinstance(failure, PeerFailure | DeadlineExceeded):
        raise failure from (error if failure is not error else None)
    _regroup(run, failure)
    run.standing.barrier_failure = None


def after_barrier(run: Run) -> None:
    """Outside of the graph, after a step whose barrier failed: as `recover`."""
    assert run.standing.barrier_failure is not None
    recover(run, run.standing.barrier_failure, where=_in_barrier(run))


def raise_barrier_failure(run: Run) -> NoReturn:
    """A barrier failed within a loop of the program's in the graph: there is no step to continue from, so it ends."""
    kept = run.standing.barrier_failure
    assert kept is not None
    failure = _meaning(run, kept, _in_barrier(run))
    raise failure from (kept if failure is not kept else None)


def _in_barrier(run: Run) -> str:
    return f"in the barrier after step {run.steps()}"


def _meaning(run: Run, error: BaseException, where: str) -> BaseException:
    """The error of ours that TensorFlow's stands for; any other one is what it is."""
    # The barrier itself, or the job, says what is wrong in errors of ours.
    if not isinstance(error, tf.errors.OpError):
        return error
    attachment = run.attachment
    found = attachment.failure_of(error)
    # An op of the user's own failed, not a message.
    if found is None:
        return error
    # Left now, and not when the next view opens: a failed attachment may keep its sockets open, and peers waiting.
    attachment.leave()
    return found.prefixed(f"{where}: ")


def _regroup(run: Run, failure: KungfuError) -> None:
    """Reports the loss, and enters the view of the survivors."""
    run.timer.lost()
    started, done = time.monotonic(), run.steps()
    loss = NoticedLoss(failure, done, run.terms, run.standing.stage, _digest(run))
    # Not all peers have done the same steps, so what their shadows asked for cannot be compared.
    run.pending.shadows.clear()
    result = run.membership.recover(run.state, loss, adjust=partial(barrier.adjusted_terms, run))
    registered_before = _registered_before(run, gives=result.rank in result.sources)
    barrier.enter(run, result, result.after.terms)
    step, run.standing.stage = run.steps(), AFTER_STEP
    left_pending(run, result, step=step)
    _reset_graph(run)
    write_variable(run.graph_state.times.rescale_seconds, run.timer.recovered())
    total_s, redone = time.monotonic() - started, max(0, done - step)
    run.journal.recovered(result, step=step, redone=redone, registered_before=registered_before, stop=run.timer.stop)
    run.journal.spanned("recovery", result, step=step, total_s=total_s)


def _registered_before(run: Run, *, gives: bool) -> int | None:
    """The step before which the registered values were read, where all continue with those of a new joiner."""
    pending = run.pending.sync
    is_new = pending is not None and pending.loads_values and run.registry.has_agreed_values
    return run.state.registered_before() if is_new and gives else None


def _digest(run: Run) -> int:
    """The digest of the state, once an exchange is under way: peers that hold the same may all give it to others."""
    if run.standing.stage <= AFTER_STEP:
        return 0
    return zlib.crc32(np.array(list(run.state.digest().values()), np.uint64).tobytes())


def _reset_graph(run: Run) -> None:
    """Leaves the graph's variables as the first step of the new view needs them."""
    graph_state = run.graph_state
    forget_message_time(run)
    write_variable(graph_state.posts.halted, False)
    # The loss was noticed inside a barrier: its requests are still open, and the next one is asked for the same.
    if run.pending.unanswered is not None:
        graph_state.posts.changes.ask()
    barrier.ask_for_departures(run)
    barrier.renew_stop(run)
