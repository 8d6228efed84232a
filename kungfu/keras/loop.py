"""``fit`` in a job: Keras' loop over epochs and batches, on peers that come and go.

Keras' own loop fetches batches ahead and calls back for each of them. Here a batch may be stale, because the membership
has changed, and is done again; so the loop is kungfu's, and Keras' parts (callbacks, ``evaluate``, metrics) are called
from it. Each peer runs it, from the top of its program.

All that happens between two steps is decided by the agreed position, and done by all peers of the view together:

- *A new view* (also the first one): the callbacks that have not begun on this peer do; what they keep is rank 0's, and
  so is every variable that they may have changed.
- *The end of an epoch*: the position is in another epoch than the one that was concluded last. Statistics of layers are
  averaged; every peer validates, and rank 0's numbers are those of all; the callbacks are called; what they leave
  (learning rate, weights, ``stop_training``) is rank 0's. Whether rank 0's callbacks were called already is told
  first: a peer may be lost in the middle, and the others go on where it was.

Where peers are lost between two steps, the others recover as from a step, and look again: a new view first, and then
what the position says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from kungfu.framework_internals import restored_epoch
from kungfu.keras.data import FitData
from kungfu.keras.evaluation.numbered_batches import numbered_batches
from kungfu.keras.evaluation.shared_pass import SharedEvaluation, SharedPass
from kungfu.keras.metrics import FitMetrics, JobLogs, plain_number
from kungfu.keras.phases import FitCall
from kungfu.keras.plain_values import pack, unpack
from kungfu.training.data.stream import DataEndedError
from kungfu.training.job_loop import JobLoop, Meeting
from kungfu.training.training import Training

__all__ = ["FitParts", "FitRun"]

_CALLBACKS = "fit.npz"  # in a checkpoint


@dataclass(frozen=True)
class FitParts:
    """What one ``fit`` in a job is made of.

    Args:
        model: Compiled and built.
        arguments: Those of ``fit`` by name, all of them.
        data: What it walks.
        training: The run.
        step: The marked step.
        metrics: The totals of the epoch.
        asks_to_stop: Tells the step that a callback of this peer wants training to stop.
    """

    model: Any
    arguments: Mapping[str, Any]
    data: FitData
    training: Training
    step: Callable[[Any], Any]
    metrics: FitMetrics
    asks_to_stop: tf.Variable


@dataclass
class _Progress:
    """How far this peer is in what lies between steps.

    Args:
        ended: The epochs that were concluded; all peers hold the same number, and a joiner is given it.
        batch: The steps of the epoch under way that are done.
        begun: Whether callbacks were told that an execution begins, of which they were not told the end.
        called: The last epoch whose end the callbacks of this peer were told, and with which numbers.
        stops: Whether rank 0 wants training to end after the step that was done last.
        concluded: After how many epochs it was decided that no further one begins; -1 as long as it was not.
        version: Of the view that this peer has entered.
        validation: Of the end of the epoch that is under way, as far as it was done.
    """

    ended: int = 0
    batch: int = 0
    begun: bool = False
    called: int = -1
    logs: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    concluded: int = -1
    version: int = -1
    validation: SharedPass | None = None

    @property
    def is_concluded(self) -> bool:
        """Whether no further epoch begins; other peers may have been lost before all knew of it."""
        return self.concluded == self.ended

    def set_ended(self, ended: int) -> None:
        self.ended = ended


class FitRun:
    """One ``fit`` on one peer of a job."""

    def __init__(self, parts: FitParts, loop: JobLoop, call: FitCall) -> None:
        self._parts, self._loop, self._call, self._progress = parts, loop, call, _Progress()
        progress = self._progress
        parts.training.register("fit/epochs_ended", lambda: progress.ended, progress.set_ended)
        for place, total in enumerate(parts.metrics.totals):
            parts.training.register(f"fit/totals/{place}", total)
        self._begins = int(parts.arguments["initial_epoch"])
        self._callbacks = call.callbacks
        loop.keep_in_checkpoints(_CALLBACKS, self._kept)
        self._logs, self._execution = JobLogs(parts.metrics), int(parts.model.steps_per_execution)

    def run(self) -> Any:
        """Trains to the end.

        Returns:
            The model's ``History``; on a peer that a decision let go, what it was until then.
        """
        model = self._parts.model
        model.stop_training = False
        try:
            self._train()
            if not self._loop.left:
                self._conclude()
                self._loop.end_phase(self._call.connection, self._call.outcome())
            self._parts.training.finish()
        except BaseException:
            self._loop.abandon()
            raise
        return model.history

    def _is_over(self) -> bool:
        return self._loop.left or self._loop.stopped or self._progress.stops or not self._has_next()

    def _train(self) -> None:
        """Steps, and what is to be done between them, until training ends or this peer is let go."""
        data = self._parts.data
        try:
            for batch in self._loop.batches(data.plan, described=data.described, over=self._is_over):
                # Else the first call of the step joins, and does no step.
                if self._loop.has_view:
                    self._attend()
                    if self._is_over():
                        break
                    self._begin_execution()
                self._do_step(batch)
        except DataEndedError as error:
            # On all peers, at the same step: they have read the same. Training ends with the data, as by Keras.
            print(f"kungfu: model.fit() ends before its last epoch: {error}", file=sys.stderr)
            self._progress.stops = True
        # The end of the last epoch, or of one that is cut short.
        self._attend()

    def _do_step(self, batch: Any) -> None:
        parts, progress = self._parts, self._progress
        if parts.model.stop_training:  # by a callback, after the step before; training ends with this one
            parts.asks_to_stop.assign(1.0)
        stops = parts.step(batch)
        # It was cut for another view, or peers were lost over it: the loader cuts it anew.
        if stops is parts.training.SKIPPED:
            return
        progress.batch += 1
        progress.stops = bool(stops.numpy() > 0)
        if progress.batch % self._execution == 0:
            self._end_execution()

    def _begin_execution(self) -> None:
        """Callbacks are called per ``steps_per_execution`` steps: before the first of them, also where it is redone."""
        progress = self._progress
        if not progress.begun and progress.batch % self._execution == 0:
            progress.begun = True
            self._callbacks.batch_begins(progress.batch)

    def _end_execution(self) -> None:
        """They are called after the last of them, or where the epoch ends before."""
        if self._progress.begun:
            self._progress.begun = False
            self._callbacks.batch_ends(self._progress.batch - 1, self._logs.so_far)

    # ---- between two steps -----------------------------------------------------------------------------------------

    def _attend(self) -> None:
        """Does, with all peers of the view, what the position asks for before the next step."""
        progress = self._progress
        while not self._loop.left:
            here = self._loop.position()
            if here.version != progress.version:  # also after peers were lost
                if self._loop.meet(self._enter):
                    progress.version = here.version
            elif self._epoch_is_over():
                self._end_execution()
                self._end_epoch()
            else:
                return

    def _epoch_is_over(self) -> bool:
        progress, here = self._progress, self._loop.position()
        if progress.is_concluded:
            return False
        cut_short = (progress.stops or self._loop.stopped) and here.offset > 0
        return cut_short or here.epoch > progress.ended

    def _enter(self, meeting: Meeting) -> None:
        """A new view: this peer's callbacks begin where they have not, and take what rank 0's keep."""
        progress = self._progress
        resumed = self._loop.resumed_file(_CALLBACKS) if progress.version < 0 else None
        held = self._loop.agreed_variables() if resumed is not None else []
        before = [tf.identity(one) for one in held]
        if resumed is not None:
            self._call.append_logs()
        self._callbacks.enter(leads=meeting.leads, epoch=None)
        first_batch = self._parts.data.first_batch_of(progress.ended)
        place = {"batch": progress.batch, "begun": progress.begun, "stops": progress.stops}
        own = {**place, "begins": self._begins_with(), "first": first_batch}
        agreed = unpack(meeting.from_leader(pack(own) if meeting.leads else b""))
        self._parts.data.refuse_other(progress.ended, leaders=agreed["first"])
        progress.batch, progress.begun, progress.stops = (agreed[name] for name in place)
        self._begins = agreed["begins"]
        epochs, number = self._parts.arguments["epochs"], self._call.connection.phase
        self._loop.count_epochs(done_before=self._begins, epochs=max(0, epochs - self._begins), fit=number)
        # Where peers were lost over the end of an epoch, one of those who live may know that it was the last one.
        if meeting.any_of([progress.is_concluded])[0]:
            progress.concluded = progress.ended
        if self._has_next():
            self._callbacks.epoch_begins(self._epoch())
        # A checkpoint was written after they were told that its epoch begins: what they did then is in its state.
        if resumed is not None:
            self._take_kept(unpack(resumed))
            for variable, value in zip(held, before, strict=True):
                variable.assign(value)
        self._callbacks.take_leaders(meeting)
        # Before the first step a callback of rank 0 may have restored what layers keep, too; later that is each peer's.
        begins = self._is_at_start()
        meeting.take_leaders(self._loop.agreed_variables() if begins else self._loop.shared_variables())

    def _is_at_start(self) -> bool:
        """Whether no step of this fit is done; agreed. The steps of the job are counted over all fits."""
        here = self._loop.position()
        return here.epoch == 0 and here.offset == 0

    def _kept(self) -> bytes:
        """What a checkpoint holds of the callbacks, and of the place between steps."""
        return pack({"callbacks": self._callbacks.kept(), "batch": self._progress.batch})

    def _take_kept(self, kept: Mapping[str, Any]) -> None:
        self._progress.batch = kept["batch"]
        self._callbacks.take(kept["callbacks"])

    def _end_epoch(self) -> None:
        """The end of the epoch after those that are concluded; where peers are lost, all come here again."""
        progress, loop = self._progress, self._loop
        if not loop.meet(self._begin_the_end):
            return
        epoch = progress.ended
        # Rank 0's callbacks have not been called: the numbers are to be found yet.
        if not progress.logs and not self._find_numbers():
            return
        if progress.called < epoch:
            progress.called = epoch
            self._callbacks.epoch_ends(self._epoch(), progress.logs)
        if not loop.meet(self._settle):
            return
        if self._has_next():
            self._parts.model.reset_metrics()
            self._callbacks.epoch_begins(self._epoch())
            loop.meet(lambda meeting: meeting.take_leaders(loop.agreed_variables()))

    def _begin_the_end(self, meeting: Meeting) -> None:
        """Statistics are the job's from here; and rank 0 says whether its callbacks were called for this epoch."""
        progress = self._progress
        self._loop.average_statistics()
        own = progress.logs if progress.called == progress.ended else {}
        progress.logs = unpack(meeting.from_leader(pack(own) if meeting.leads else b""))

    def _find_numbers(self) -> bool:
        """The numbers of an epoch are rank 0's: a validation may round otherwise on another machine."""
        own = self._numbers()

        def agree(meeting: Meeting) -> None:
            self._progress.logs = unpack(meeting.from_leader(pack(own) if meeting.leads else b""))

        return own is not None and self._loop.meet(agree)

    def _settle(self, meeting: Meeting) -> None:
        """What the callbacks have left is rank 0's; the epoch is concluded."""
        progress, model = self._progress, self._parts.model
        first_batch = self._next_first_batch()
        own = {"stops": bool(model.stop_training), "first_batch": first_batch}
        agreed = unpack(meeting.from_leader(pack(own) if meeting.leads else b""))
        if first_batch >= 0:
            self._parts.data.refuse_other(progress.ended + 1, leaders=agreed["first_batch"])
        self._callbacks.take_leaders(meeting, of_writers=True)
        meeting.take_leaders(self._loop.agreed_variables())
        model.stop_training = agreed["stops"]
        self._parts.asks_to_stop.assign(0.0)  # what only this peer has asked for is passed over
        progress.ended, progress.batch, progress.validation = progress.ended + 1, 0, None
        if agreed["stops"] or progress.stops or self._loop.stopped:
            progress.concluded = progress.ended

    def _next_first_batch(self) -> int:
        """Of the epoch that has begun, if one has; the loader has its first batch already."""
        begun = self._loop.position().epoch
        return self._parts.data.first_batch_of(begun) if begun > self._progress.ended else -1

    def _numbers(self) -> dict[str, Any] | None:
        """The metrics of the epoch and of a validation, over all peers; ``None`` where peers were lost over it."""
        model, arguments, progress = self._parts.model, self._parts.arguments, self._progress
        logs = dict(self._logs.so_far())  # the metrics hold them from here
        validation = self._parts.data.validation
        if validation is None or not _validates(self._epoch(), arguments["validation_freq"]):
            return logs
        x, y, sample_weight = validation
        given = {
            "x": x, "y": y, "sample_weight": sample_weight, "steps": arguments["validation_steps"],
            "batch_size": arguments["validation_batch_size"] or arguments["batch_size"],
        }  # fmt: skip
        if progress.validation is None:
            evaluation = SharedEvaluation(model, given, self._callbacks.running, self._call.combine)
            progress.validation = SharedPass(numbered_batches(given), evaluation)
        if not progress.validation.attempt(self._loop.meet):
            return None
        found = progress.validation.result
        return {**logs, **{f"val_{name}": plain_number(value) for name, value in found.items()}}

    def _begins_with(self) -> int:
        """The number of the first epoch: another one where a callback of rank 0 has restored what it had backed up."""
        return restored_epoch(self._parts.model) or self._begins if self._callbacks.restores else self._begins

    def _epoch(self) -> int:
        """The epoch after those that are concluded, as Keras counts it."""
        return self._begins + self._progress.ended

    def _has_next(self) -> bool:
        return not self._progress.is_concluded and self._epoch() < self._parts.arguments["epochs"]

    def _conclude(self) -> None:
        """After the last epoch: averages of weights are put in place, and the callbacks told of the end."""
        model = self._parts.model
        if model.optimizer is not None:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._callbacks.end(self._progress.logs)
        while not self._loop.left:
            if self._loop.meet(lambda meeting: meeting.take_leaders(self._loop.agreed_variables())):
                return


def _validates(epoch: int, frequency: Any) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency
