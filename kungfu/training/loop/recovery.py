"""Recovery of this peer after the loss of another peer.

The loss is noticed in one of four places:

1. Before a step, because the job has given up a peer of the view (`lasting_failure`).
2. In a step, because its message fails, and with it the compiled step, before any variable was assigned.
3. In the barrier after a step. The barrier runs inside the graph, where an exception would lose its type: the failure
   is kept (`keep`), the step returns the code of a failed barrier, and `after_barrier` continues outside the graph.
4. In the last barrier, once training is over.

In each of these places `recover` either restores a working view, or raises an error:

- It classifies the error. The attachment has recorded whether a message failed, why, and over which ranks, so no error
  text is parsed. An error other than the loss of peers belongs to the program, and is raised.
- It closes its connections to the other peers, so that peers blocked in the all-reduce notice the loss too.
- It reports the loss to the job and waits for the view of the survivors, with the state of the most advanced peer (see
  `kungfu.runtime.peer.membership`). If too few peers are alive, an error is raised, and the program ends.
- It enters the new view, and resets the graph for the next step.

The current batch was cut for the previous view: its step returns ``SKIPPED``, and the loader cuts the next batch at the
position that all peers agreed on, so that each sample is trained on once.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NoReturn

import tensorflow as tf

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.runtime.api import NoticedLoss
from kungfu.training.graph.training_state import checksum_of
from kungfu.training.graph.variable_io import write_variable
from kungfu.training.loop import barrier
from kungfu.training.loop.between_steps import forget_message_time, left_pending
from kungfu.training.run import AFTER_STEP, Run


def lasting_failure(run: Run) -> PeerFailure | None:
    """Before a step: the loss of a peer that the job has given up, although the peer's messages may still arrive.

    Cost: reading one field if no peer was given up; every training step calls this function."""
    if (failure := run.membership.lasting_failure()) is None:
        return None
    run.attachment.leave()
    return failure.prefixed(f"before step {run.steps() + 1}: ")


def keep(run: Run, error: BaseException) -> None:
    """Inside the graph: stores the failure of a barrier, and stops the steps of a loop in the graph."""
    run.standing.barrier_failure = error
    write_variable(run.graph_state.posts.halted, True)


def recover(run: Run, error: BaseException, *, where: str = "") -> None:
    """Continues without the peers that were lost.

    Args:
        error: TensorFlow's error for a message that failed, or an error of kungfu.
        where: For TensorFlow's error: the position of this peer, such as "in step 7" or "between steps 7 and 8".

    Raises:
        BaseException: ``error`` itself if it is not the loss of peers, or if this program runs alone; or the failure
            recorded by the attachment, if this failure is an error of kungfu other than the loss of a peer.
        KungfuError: Too few peers are alive.

    Cost:
        A report to the agent, new connections between the survivors, and the transfer of the most advanced peer's state
        if this peer has another state; see ``benchmarks.failure``.
    """
    failure = _meaning(run, error, where)
    # Neither a lost peer nor a late one: an error of the program, or of kungfu itself.
    if not isinstance(failure, PeerFailure | DeadlineExceeded):
        raise failure from (error if failure is not error else None)
    _regroup(run, failure)
    run.standing.barrier_failure = None


def after_barrier(run: Run) -> None:
    """Recovers, like `recover`, outside of the graph after a step whose barrier failed."""
    assert run.standing.barrier_failure is not None
    recover(run, run.standing.barrier_failure, where=_in_barrier(run))


def raise_barrier_failure(run: Run) -> NoReturn:
    """Raises the failure of a barrier if the program runs a loop of steps in the graph: no step can continue there."""
    kept = run.standing.barrier_failure
    assert kept is not None
    failure = _meaning(run, kept, _in_barrier(run))
    raise failure from (kept if failure is not kept else None)


def average_survivors(run: Run, *, rank: int, size: int, is_source: bool) -> None:
    """Averages the models of the survivors of a loss; see `barrier.average_models`.

    Raises:
        PeerFailure: A survivor was lost meanwhile.
        DeadlineExceeded: A survivor was late.
    """
    try:
        barrier.average_models(run, rank=rank, size=size, is_source=is_source)
    except tf.errors.OpError as error:
        failure = run.attachment.failure_of(error)
        # An op failed, not a message.
        if failure is None:
            raise
        raise failure from error


def _in_barrier(run: Run) -> str:
    return f"in the barrier after step {run.steps()}"


def _meaning(run: Run, error: BaseException, where: str) -> BaseException:
    """The kungfu error that caused TensorFlow's error for a message; any other error unchanged."""
    # The barrier itself, or the job, has raised an error of kungfu.
    if not isinstance(error, tf.errors.OpError):
        return error
    attachment = run.attachment
    found = attachment.failure_of(error)
    # An op of the user failed, not a message.
    if found is None:
        return error
    # Left now, not when the next view opens: a failed attachment may keep its sockets open, and other peers waiting.
    attachment.leave()
    return found.prefixed(f"{where}: ")


def _regroup(run: Run, failure: KungfuError) -> None:
    """Reports the loss, and enters the view of the survivors."""
    run.timer.lost()
    started, done = time.monotonic(), run.steps()
    loss = NoticedLoss(failure, done, run.terms, run.standing.stage, _digest(run))
    # The survivors may have done different steps, so the requests of their shadow rules cannot be compared.
    run.pending.shadows.clear()
    result = run.membership.recover(run.state, loss, adjust=partial(barrier.adjusted_terms, run))
    registered_before = _registered_before(run, gives=result.rank in result.sources)
    barrier.enter(run, result, result.after.terms)
    step, run.standing.stage = run.steps(), AFTER_STEP
    left_pending(run, result, step=step)
    _reset_graph(run)
    write_variable(run.graph_state.times.rescale_seconds, run.timer.recovered())
    total_s, redone = time.monotonic() - started, max(0, done - step)
    lost_samples = 0 if run.models is None else run.models.lost
    found = {"redone": redone, "lost_samples": lost_samples}
    run.journal.recovered(result, step=step, **found, registered_before=registered_before, stop=run.timer.stop)
    run.journal.spanned("recovery", result, step=step, total_s=total_s)


def _registered_before(run: Run, *, gives: bool) -> int | None:
    """The step before which registered values were read, if this peer is a source but newly joined; else ``None``."""
    pending = run.pending.sync
    is_new = pending is not None and pending.loads_values and run.registry.has_agreed_values
    return run.state.registered_before() if is_new and gives else None


def _digest(run: Run) -> int:
    """The state's digest, or 0 before an exchange between steps. Peers with equal digests may all send the state."""
    # Between two averages the models differ, and the survivors average them.
    is_apart = run.models is not None and not run.models.is_in_force(run.steps())
    return 0 if run.standing.stage <= AFTER_STEP or is_apart else checksum_of(run.state.shared())


def _reset_graph(run: Run) -> None:
    """Resets the graph's variables for the first step of the new view."""
    graph_state = run.graph_state
    forget_message_time(run)
    write_variable(graph_state.posts.halted, False)
    # The loss was noticed inside a barrier: its requests are still open, and pass to the next barrier.
    if run.pending.unanswered is not None:
        graph_state.posts.changes.ask()
    barrier.ask_for_departures(run)
    # A lost rank 0 may not have carried out the program's request to end training.
    if run.pending.stop_reason is not None:
        barrier.ask(run)
