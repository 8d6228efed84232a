"""A loop that kungfu itself runs over the steps of a job, as under Keras' ``fit``: batches, and meetings between steps.

A program's own loop knows batches and steps only. One that validates and calls back between two steps has to do so on
all peers at the same position, with the same numbers: it holds *meetings* there. A peer may be lost over one; then the
others recover as from a step, and the loop looks again at what is to be done at the position where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from kungfu.training.data import BatchPlan
from kungfu.training.graph.average import GivenTotals, SummedMetrics, average, average_to_conclude
from kungfu.training.graph.combined_metrics import PeerPlace
from kungfu.training.graph.gradient_message import Averaging
from kungfu.training.graph.graph_state import ProgressVariables
from kungfu.training.graph.totals import add_up
from kungfu.training.loop import barrier
from kungfu.training.loop.averages import average_in_step
from kungfu.training.loop.batches import count_epochs, declare_batches, loop_batches
from kungfu.training.loop.between_steps import complete_state, peer_group
from kungfu.training.loop.job_connection import JobConnection
from kungfu.training.loop.loop_metrics import peer_place
from kungfu.training.loop.training import Training
from kungfu.training.run import Run
from kungfu.training.state.registered_sync import PeerGroup


class JobLoop:
    """The interface of a run for a loop that drives it step by step.

    Args:
        training: The run; its step is marked by this loop.
    """

    def __init__(self, training: Training) -> None:
        self._run, self._calls = run, calls = training._run, training._calls
        self.position, self.meet, self.finish, self.abandon = calls.position, calls.meet, calls.finish, calls.abandon
        self.keep_in_checkpoints, self.resumed_file = run.checkpoints.keep, run.checkpoints.resumed_file
        self.share_memory, self.count_epochs = partial(run.memory.share, run.trace), partial(count_epochs, run)
        self.complete_state = partial(complete_state, run)
        self.average_statistics = partial(barrier.average_statistics, run)
        self.shared_variables, self.agreed_variables = run.state.shared, run.state.agreed
        self._conclude: Callable[[], Any] | None = None  # of the step that is being traced

    # ---- the phase -------------------------------------------------------------------------------------------------

    def describe(self, told: Sequence[str]) -> None:
        """The description that has to be the same on all peers, in words; before the first step."""
        self._run.declared.told = told

    def keep_more(self) -> None:
        """This loop gives peers of a new view more than what is registered: it says when they have it."""
        self._run.declared.has_more = True

    def end_phase(self, connection: JobConnection, content: Callable[[], bytes]) -> None:
        """Training is over, but for the last barrier; ``content`` packs what it came to."""
        connection.end_phase(content, terms=self._run.terms, trained=int(self.progress.trained.read_value()))

    # ---- the step --------------------------------------------------------------------------------------------------

    def average_and_sum(self, gradients: Any, totals: Sequence[Any], *, loss: Any) -> tuple[Any, Sequence[Any]]:
        """Graph: as ``Training.average``, and the sums of ``totals`` over the peers, of which policies see nothing."""
        given = GivenTotals(totals)
        riders: list[SummedMetrics] = [given, self._run.memory.sums]
        means = average_in_step(self._run, gradients, partial(average, gradients=gradients, loss=loss, riders=riders))
        return means, given.sums

    def average_for(self, optimizer: Any, gradients: Any, *, loss: Any) -> Any:
        """Graph: as ``Training.average``, of the gradients that one of several optimizers is to apply.

        The policies see loss, gradients and learning rate of the last one in a step, and conclude with `conclude`.
        """
        trace = self._run.trace

        def last(averaging: Averaging) -> Any:
            trace.undo_all()
            means, self._conclude = average_to_conclude(averaging, gradients, loss=loss, waited=trace.waited)
            return means

        return average_in_step(self._run, gradients, last, optimizer=optimizer)

    def conclude(self, values: Sequence[Any]) -> list[Any]:
        """Graph, at the end of a step: the sums of tensors over the peers; where they have come, the step counts.

        Cost:
            A message; none without values.
        """
        trace = self._run.trace
        with trace.ours():
            sums = _last_sums(self._run, values)
            if self._conclude is not None:  # else the step has not averaged, which its trace refuses
                with tf.control_dependencies(sums):
                    self._conclude()
        trace.note_end()
        return sums[: len(values)]

    @property
    def reads_loss(self) -> bool:
        """True if a policy reads the loss."""
        return bool({"loss", "mean_loss"} & self._run.plan.sources)

    def sum_before(self, *values: Any, tag: str) -> list[Any]:
        """Graph: sums over the peers, in a message of their own before that of the gradients; the step continues with
        it.

        Args:
            values: Tensors of the same types and shapes on all peers.
            tag: Names the message.
        """
        with self._run.trace.ours():
            return _added(self._run, values, tag=tag)

    @property
    def place(self) -> PeerPlace:
        """Graph: this peer's part in the step; 0 samples where its slice is empty."""
        return peer_place(self._run.graph_state)

    @property
    def progress(self) -> ProgressVariables:
        """The agreed position as variables, as the step finds it."""
        return self._run.graph_state.progress

    # ---- the loop --------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int | None:
        """This peer's rank; ``None`` once a decision let it go."""
        return self._run.rank

    @property
    def has_view(self) -> bool:
        """True if this peer is in a view: from its first call of the step on, which only joins; alone, always."""
        return self._run.is_alone or self.position().version > 0

    def batches(
        self, plan: BatchPlan, *, described: Mapping[str, int], over: Callable[[], bool], attend: Callable[[], None]
    ) -> Iterator[Any]:
        """The batches of the calls of the step; unlike ``Training.batches`` this does not end the run.

        ``attend`` holds the meetings of this loop in a new view; see `loop_batches`.
        """
        declare_batches(self._calls, plan, described=described)
        return loop_batches(self._calls, plan, over=over, attend=attend)

    def meet_after_training(self, together: Callable[[PeerGroup], None], *, what: str) -> str:
        """Holds a meeting after training is over, when peers may end their programs at any time: nothing is recovered.

        Args:
            together: Exchanges what it has to with the others.
            what: The object of the wait, for the message about a late peer.

        Returns:
            Why it could not be held; "" where it was.
        """
        run = self._run
        try:
            together(peer_group(run, tag=what))
        except tf.errors.OpError as error:
            failure = run.attachment.failure_of(error)
            # An op of the program's own failed, not a message.
            if failure is None:
                raise
            return str(failure)
        return ""

    @property
    def is_after_training(self) -> bool:
        """True if this peer has trained to the end, in a view that no other one has followed."""
        run = self._run
        return self._calls.is_over and not run.left and self.has_view and run.settings.is_newest()


def _last_sums(run: Run, values: Sequence[Any]) -> list[Any]:
    """Graph: the sums of values over the peers, by a message of its own, and behind them of what layers have added."""
    memory, samples = run.memory.sums, run.graph_state.metrics.samples.read_value()
    # A peer without samples ran on another's.
    given = [*values, *(tf.where(samples > 0, one, tf.zeros_like(one)) for one in memory.outgoing())]
    sums = _added(run, given, tag="metrics") if given else []
    memory.conclude(sums[len(values) :])
    return sums


def _added(run: Run, values: Sequence[Any], *, tag: str) -> list[Any]:
    return add_up(run.attachment, values, order=run.graph_state.order, tag=tag)
