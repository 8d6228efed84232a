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

from kungfu.training import barrier
from kungfu.training.batches import count_epochs, declare_batches, loop_batches
from kungfu.training.between_steps import complete_state, peer_group
from kungfu.training.combined_metrics import PeerPlace
from kungfu.training.data import BatchPlan
from kungfu.training.graph.average import average_and_sum, average_before_last, average_to_conclude
from kungfu.training.graph.graph_state import ProgressVariables
from kungfu.training.graph.totals import add_up
from kungfu.training.job_connection import JobConnection
from kungfu.training.registered.registered_sync import PeerGroup
from kungfu.training.training import Training


class JobLoop:
    """What such a loop needs of a run.

    Args:
        training: The run; its step is marked by this loop.
    """

    def __init__(self, training: Training) -> None:
        self._run, self._calls = run, calls = training._run, training._calls
        self.position, self.meet, self.finish, self.abandon = calls.position, calls.meet, calls.finish, calls.abandon
        self.keep_in_checkpoints, self.resumed_file = run.checkpoints.keep, run.checkpoints.resumed_file
        self.share_memory, self.count_epochs = partial(run.memory.share, run.trace), partial(count_epochs, run)
        self.complete_state = partial(complete_state, run)
        self._conclude: Callable[[], Any] | None = None  # of the step that is being traced

    # ---- the phase -------------------------------------------------------------------------------------------------

    def describe(self, told: Sequence[str]) -> None:
        """What has to be the same on all peers, in words; before the first step."""
        self._run.declared.told = told

    def keep_more(self) -> None:
        """This loop gives peers of a new view more than what is registered: it says when they have it."""
        self._run.declared.has_more = True

    def end_phase(self, connection: JobConnection, content: Callable[[], bytes]) -> None:
        """Training is over, but for the last barrier; ``content`` packs what it came to."""
        connection.end_phase(content, terms=self._run.terms, trained=int(self.progress.trained.read_value()))

    # ---- the step --------------------------------------------------------------------------------------------------

    def average_and_sum(self, gradients: Any, totals: Sequence[Any], *, loss: Any) -> tuple[Any, list[Any]]:
        """Graph: as ``Training.average``, and the sums of ``totals`` over the peers; see `average_and_sum`."""
        run, trace, memory = self._run, self._run.trace, self._run.memory.sums
        with trace.average():
            run.graph_state.metrics.published.refuse_missing(trace.published, trace.captured())
            means, sums = average_and_sum(run.averaging(), gradients, [*totals, *memory.outgoing()], loss=loss)
            memory.conclude(sums[len(totals) :])
        trace.averaged(means)
        return means, sums[: len(totals)]

    def average_for(self, optimizer: Any, gradients: Any, *, loss: Any) -> Any:
        """Graph: as ``Training.average``, of the gradients that one of several optimizers is to apply.

        The policies see loss, gradients and learning rate of the last one in a step, and conclude with `conclude`.
        """
        run, trace = self._run, self._run.trace
        with trace.average():
            averaging = run.averaging(optimizer)
            if not trace.is_last_average:
                means, waited_s = average_before_last(averaging, gradients, place=trace.averages)
                trace.waited.append(waited_s)
                return means
            run.graph_state.metrics.published.refuse_missing(trace.published, trace.captured())
            trace.undo_all()
            means, self._conclude = average_to_conclude(averaging, gradients, loss=loss, waited=trace.waited)
        trace.averaged(means)
        return means

    def conclude(self, values: Sequence[Any]) -> list[Any]:
        """Graph, at the end of a step: the sums of tensors over the peers; where they have come, the step counts.

        Cost:
            A message; none without values.
        """
        trace, memory = self._run.trace, self._run.memory.sums
        with trace.ours():
            # A peer without samples ran on another's.
            added = [tf.where(self.samples > 0, one, tf.zeros_like(one)) for one in memory.outgoing()]
            sums = self._added([*values, *added], tag="metrics") if [*values, *added] else []
            memory.conclude(sums[len(values) :])
            if self._conclude is not None:  # else the step has not averaged, which its trace refuses
                with tf.control_dependencies(sums):
                    self._conclude()
        trace.note_end()
        return sums[: len(values)]

    @property
    def reads_loss(self) -> bool:
        """Whether a policy reads the loss."""
        return bool({"loss", "mean_loss"} & self._run.plan.sources)

    def sum_before(self, *values: Any, tag: str) -> list[Any]:
        """Graph: sums over the peers, in a message of their own before that of the gradients; the step goes on with it.

        Args:
            values: Tensors of the same types and shapes on all peers.
            tag: Names the message.
        """
        with self._run.trace.ours():
            return self._added(values, tag=tag)

    def _added(self, values: Sequence[Any], *, tag: str) -> list[Any]:
        run = self._run
        return add_up(run.attachment, values, order=run.graph_state.order, tag=tag)

    @property
    def samples(self) -> Any:
        """Graph: the samples of this peer in this step, float32; 0 where its slice is empty."""
        metrics = self._run.graph_state.metrics
        return metrics.samples.read_value()

    @property
    def place(self) -> PeerPlace:
        """Graph: this peer's part in the step."""
        size = self._run.graph_state.view.size
        return PeerPlace(self.samples, self.rank_variable.read_value(), size.read_value())

    @property
    def progress(self) -> ProgressVariables:
        """The agreed position as variables, as the step finds it."""
        return self._run.graph_state.progress

    @property
    def rank_variable(self) -> tf.Variable:
        """This peer's rank in the graph."""
        view = self._run.graph_state.view
        return view.rank

    # ---- the loop --------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int | None:
        """This peer's rank; ``None`` once a decision let it go."""
        return self._run.rank

    @property
    def has_view(self) -> bool:
        """Whether this peer is in a view: from its first call of the step on, which only joins; alone, always."""
        return self._run.is_alone or self.position().version > 0

    def batches(
        self, plan: BatchPlan, *, described: Mapping[str, int], over: Callable[[], bool], attend: Callable[[], None]
    ) -> Iterator[Any]:
        """What one call of the step after the other needs; unlike ``Training.batches`` it does not end the run.

        ``attend`` holds the meetings of this loop in a new view; see `loop_batches`.
        """
        declare_batches(self._calls, plan, described=described)
        return loop_batches(self._calls, plan, over=over, attend=attend)

    def average_statistics(self) -> None:
        """Between two steps, on all peers; see `barrier.average_statistics`."""
        barrier.average_statistics(self._run)

    def meet_after_training(self, together: Callable[[PeerGroup], None], *, what: str) -> str:
        """Holds a meeting after training is over, when peers may end their programs at any time: nothing is recovered.

        Args:
            together: Exchanges what it has to with the others.
            what: What the others are waited for in, for those who are told of a late peer.

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
        """Whether this peer has trained to the end, in a view that no other one has followed."""
        run = self._run
        return self._calls.is_over and not run.left and self.has_view and run.settings.is_newest()

    def shared_variables(self) -> list[tf.Variable]:
        """Those of model, optimizers and policies that are equal on all peers between two steps."""
        classes = self._run.state.classes
        return list(classes.shared.values())

    def agreed_variables(self) -> list[tf.Variable]:
        """Those, and what layers keep of the data: where that has been averaged it is the same on all peers too."""
        classes = self._run.state.classes
        return [*classes.shared.values(), *classes.averaged.values(), *classes.of_rank_0.values()]
