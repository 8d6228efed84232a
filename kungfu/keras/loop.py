"""``fit`` in a job: Keras' loop over epochs and batches, on peers that come and go.

Keras' own loop fetches batches ahead and calls back for each of them. Here a batch may be stale, because the membership
has changed, and is done again; so the loop is kungfu's, and Keras' parts (callbacks, ``evaluate``, metrics) are called
from it. Each peer runs it, from the top of its program.

All that happens between two steps is decided by the agreed position, and done by all peers of the view together:

- *A new view* (also the first one): all go on from the place of the peer whose state all have taken. The callbacks of
  the others are told what its callbacks were told; what they keep is its own then, and so is every variable that they
  may have changed.
- *The end of an epoch*: the position is in another epoch than the one that was concluded last. Statistics of layers are
  averaged; every peer validates, and rank 0's numbers are those of all; the callbacks are called; what they leave
  (learning rate, weights, ``stop_training``) is rank 0's.
- *The end of training*: the callbacks are told, and what they leave is rank 0's.

Where peers are lost between two steps, the others recover as from a step, and look again: a new view first, and then
what the position says. Those that write run on rank 0 alone, and nobody knows how far they came where it was lost: the
next rank 0 tells its own of the epoch that was not concluded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf

from kungfu.framework_internals import restored_epoch
from kungfu.keras.evaluation.shared_pass import Validation
from kungfu.keras.fits import FitCall
from kungfu.keras.metrics import FitMetrics, JobLogs, plain_number
from kungfu.keras.plain_values import pack, unpack
from kungfu.training.data.stream import DataEndedError
from kungfu.training.loop.job_loop import JobLoop
from kungfu.training.loop.training import Training
from kungfu.training.state.registered_sync import PeerGroup

_CALLBACKS = "fit.npz"  # in a checkpoint
# What a checkpoint has of the place: a run that is resumed may go on where the one before was to end.
_KEPT = ("batch", "begun", "called", "logs")
_UNHEEDED = (
    "kungfu: a callback has set model.stop_training on this peer, and not on rank 0, whose word counts: training goes "
    "on; let callbacks decide by what all peers have alike, as the logs, or call stop() of what attach() gave on rank 0"
)

_NOT_SHARED = (
    "kungfu: the validation of model.fit() is not shared among the peers: on some its data come in another order, or "
    "with other inputs. Each peer does the whole, and the numbers are rank 0's"
)


@dataclass
class _Progress:
    """How far this peer is in what lies between steps.

    Args:
        ended: The epochs that were concluded; all peers hold the same number, and a joiner is given it.
        batch: The steps of the epoch under way that are done.
        begun: Whether callbacks were told that an execution begins, of which they were not told the end.
        called: The last epoch whose end the callbacks of this peer were told.
        logs: The numbers of that epoch.
        stops: Whether rank 0 wants training to end after the step that was done last.
        concluded: After how many epochs it was decided that no further one begins; -1 as long as it was not.
        over: Whether callbacks were told that training is over.
        version: Of the view that this peer has entered.
        parted: Of the view in which all have agreed on what callbacks have left at the end of training.
        validation: Of the end of the epoch that is under way, as far as it was done.
    """

    ended: int = 0
    batch: int = 0
    begun: bool = False
    called: int = -1
    logs: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    concluded: int = -1
    over: bool = False
    version: int = -1
    parted: int = -1
    validation: Validation | None = None

    @property
    def is_concluded(self) -> bool:
        """Whether no further epoch begins; other peers may have been lost before all knew of it."""
        return self.concluded == self.ended

    def told(self) -> dict[str, Any]:
        """The place of this peer, from which all go on."""
        return {name: getattr(self, name) for name in (*_KEPT, "stops", "concluded", "over")}

    def take(self, told: Mapping[str, Any]) -> None:
        """That of another peer, or of a checkpoint."""
        for name, value in told.items():
            setattr(self, name, value)


class FitRun:
    """One ``fit`` on one peer of a job.

    Args:
        call: What ``fit`` was called with.
        training: The run.
        loop: What is needed of it.
        step: The marked step.
        metrics: The totals of the epoch.
        asks_to_stop: Tells the step that a callback of this peer wants training to stop.
    """

    def __init__(
        self,
        call: FitCall,
        training: Training,
        loop: JobLoop,
        *,
        step: Callable[[Any], Any],
        metrics: FitMetrics,
        asks_to_stop: tf.Variable,
    ) -> None:
        self._call, self._training, self._loop, self._progress = call, training, loop, _Progress()
        self._step, self._asks_to_stop = step, asks_to_stop
        progress = self._progress
        training.register("fit/epochs_ended", lambda: progress.ended, partial(setattr, progress, "ended"))
        for place, total in enumerate(metrics.totals):
            training.register(f"fit/totals/{place}", total)
        self._begins, self._said = int(call.arguments["initial_epoch"]), False
        self._callbacks = call.callbacks
        loop.keep_in_checkpoints(_CALLBACKS, self._kept)
        loop.keep_more()
        self._logs, self._execution = JobLogs(metrics), int(call.model.steps_per_execution)
        self._is_unheeded = False  # a callback of this peer alone wants training to stop, and people were told

    def run(self) -> Any:
        """Trains to the end.

        Returns:
            The model's ``History``; on a peer that a decision let go, what it was until then.
        """
        model = self._call.model
        model.stop_training = False
        try:
            self._train()
            if not self._training.left and not self._progress.over:
                self._conclude()
            self._loop.finish(self._part)
        except BaseException:
            self._loop.abandon()
            raise
        return model.history

    def _is_over(self) -> bool:
        return self._training.left or self._training.stopped or self._progress.stops or not self._has_next()

    def _train(self) -> None:
        """Steps, and what is to be done between them, until training ends or this peer is let go."""
        data = self._call.data
        try:
            batches = self._loop.batches(data.plan, described=data.described, over=self._is_over, attend=self._attend)
            for batch in batches:
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
        progress = self._progress
        if self._call.model.stop_training:  # by a callback, after the step before; training ends with this one
            self._asks_to_stop.assign(1.0)
        stops = self._step(batch)
        # It was cut for another view, or peers were lost over it: the loader cuts it anew.
        if stops is Training.SKIPPED:
            return
        progress.batch += 1
        progress.stops = bool(stops.numpy() > 0)
        self._tell_if_unheeded(stops=progress.stops)
        if progress.batch % self._execution == 0:
            self._end_execution()

    def _tell_if_unheeded(self, *, stops: bool) -> None:
        """Says once that a callback of this peer wants training to stop, where that of rank 0 ``stops`` nothing."""
        if self._call.model.stop_training and not stops and not self._is_unheeded:
            self._is_unheeded = True
            print(_UNHEEDED, file=sys.stderr)

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
        while not self._training.left:
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
        cut_short = (progress.stops or self._training.stopped) and here.offset > 0
        return cut_short or here.epoch > progress.ended

    def _enter(self, meeting: PeerGroup) -> None:
        """A new view: all go on from the place of one peer, with what its callbacks keep and have left."""
        progress, callbacks = self._progress, self._callbacks
        resumed = self._loop.resumed_file(_CALLBACKS) if progress.version < 0 else None
        held = self._loop.agreed_variables() if resumed is not None else []
        before = [tf.identity(one) for one in held]
        if resumed is not None:
            self._call.append_logs()
        callbacks.begin()
        # Nobody is in this fit yet: a callback of rank 0 may restore a backup, and all go on from that.
        begins = not meeting.any_of([progress.version >= 0])[0]
        if meeting.leads and begins:
            callbacks.lead(takes_over=False)
        # Else from the peer whose variables all have: of another one the callbacks may have been told what those lack.
        restores = begins and meeting.any_of([meeting.leads and callbacks.restores])[0]
        source = 0 if restores else meeting.source
        told = self._agree_on_place(meeting, source)
        if self._has_next():
            callbacks.epoch_begins(self._epoch())
        # A checkpoint was written after they were told that its epoch begins: what they did then is in its state.
        if resumed is not None:
            self._take_kept(unpack(resumed))
            for variable, value in zip(held, before, strict=True):
                variable.assign(value)
        self._agree_on_callbacks(meeting, source)
        # Between two epochs all hold the same statistics of layers; in an epoch they are each peer's.
        is_between = self._loop.position().offset == 0 or told["called"] == progress.ended or told["over"]
        held = self._loop.agreed_variables() if is_between else self._loop.shared_variables()
        meeting.take(held, rank=source)
        if meeting.leads:
            self._lead()
        self._loop.complete_state()

    def _agree_on_place(self, meeting: PeerGroup, source: int) -> dict[str, Any]:
        """This peer goes on from the place of the source, of which its callbacks are told; gives that place."""
        progress, call, callbacks = self._progress, self._call, self._callbacks
        begins, first_batch = self._begins_with(), call.data.first_batch_of(progress.ended)
        validation = None if progress.validation is None else progress.validation.told()
        more = {"begins": begins, "first": first_batch, "epoch": callbacks.epoch, "validation": validation}
        more["stop_training"] = bool(call.model.stop_training)
        own = {"place": progress.told(), **more}
        agreed = unpack(meeting.from_rank(source, pack(own) if meeting.rank == source else b""))
        call.data.refuse_other(progress.ended, coordinators=agreed["first"])
        self._begins = agreed["begins"]
        epochs, number = call.arguments["epochs"], call.connection.phase
        self._loop.count_epochs(done_before=self._begins, epochs=max(0, epochs - self._begins), fit=number)
        told: dict[str, Any] = agreed["place"]
        self._catch_up_in_epoch(told)
        # One that joins was told nothing yet, and is not told of what was before.
        if progress.version >= 0:
            self._catch_up(told, epoch=agreed["epoch"], validation=agreed["validation"])
        progress.take(told)
        call.model.stop_training = agreed["stop_training"]
        self._asks_to_stop.assign(0.0)  # the next step is told anew
        return told

    def _catch_up_in_epoch(self, told: Mapping[str, Any]) -> None:
        """The callbacks of this peer are told what those of the source were told; what they do then does not last."""
        progress, callbacks, each = self._progress, self._callbacks, self._execution
        is_same = told["begun"] and told["batch"] // each == progress.batch // each
        # It is over for the source; of its first step this peer may not know.
        if progress.begun and not is_same:
            done = progress.batch + int(progress.batch % each == 0)
            callbacks.batch_ends(max(told["batch"], done) - 1, self._logs.so_far)
        if told["begun"] and not (progress.begun and is_same):
            callbacks.batch_begins(told["batch"] // each * each)

    def _catch_up(self, told: Mapping[str, Any], *, epoch: int, validation: Mapping[str, Any] | None) -> None:
        """As before, of what lies between two epochs."""
        progress, callbacks = self._progress, self._callbacks
        # The validation has begun, or has come to its end.
        if validation is not None:
            self._validation().catch_up(validation)
        # The end of an epoch, the beginning of the next one, the end of training.
        if told["called"] > progress.called:
            callbacks.epoch_ended(self._begins + told["called"], told["logs"])
        callbacks.epoch_begins(epoch)
        if told["over"] and not progress.over:
            callbacks.end(told["logs"])
        # The source has concluded the epoch, and what this peer has of its end is done.
        if validation is None:
            progress.validation = None

    def _agree_on_callbacks(self, meeting: PeerGroup, source: int) -> None:
        """What callbacks keep is the source's; of those that write it is rank 0's where it led before."""
        (led,) = meeting.any_of([self._callbacks.leads])
        if not led or source == 0:
            self._callbacks.agree(meeting, "all", rank=source)
        else:
            self._callbacks.agree(meeting, "others", rank=source)
            self._callbacks.agree(meeting, "writers")

    def _lead(self) -> None:
        """This peer is rank 0: those that write go on where they were on the one before, as far as that is known."""
        callbacks, progress = self._callbacks, self._progress
        if callbacks.leads:
            return
        callbacks.lead(takes_over=True)
        # They may not have been told on the one before.
        if progress.over:
            callbacks.end_writers(progress.logs)

    def _kept(self) -> bytes:
        """What a checkpoint holds of the callbacks, and of the place between steps."""
        progress = self._progress
        place = {name: value for name, value in progress.told().items() if name in _KEPT}
        validation = None if progress.validation is None else progress.validation.told()
        callbacks = self._callbacks
        return pack({"callbacks": callbacks.kept(), **place, "written": callbacks.written, "validation": validation})

    def _take_kept(self, kept: Mapping[str, Any]) -> None:
        # One that an earlier version wrote has less of it.
        self._progress.take({name: value for name, value in kept.items() if name in _KEPT})
        if kept.get("validation") is not None:
            self._validation().catch_up(kept["validation"])
        self._callbacks.resume(kept["callbacks"])
        self._callbacks.written = kept.get("written", self._callbacks.written)

    def _end_epoch(self) -> None:
        """The end of the epoch after those that are concluded; where peers are lost, all come here again."""
        progress, loop = self._progress, self._loop
        if not loop.meet(self._begin_the_end):
            return
        epoch = progress.ended
        # Rank 0's callbacks have not been called: the numbers are to be found yet.
        if not progress.logs and not self._find_numbers():
            return
        callbacks, number = self._callbacks, self._epoch()
        is_told, is_written = progress.called >= epoch, callbacks.written >= epoch
        progress.called, callbacks.written = epoch, epoch if callbacks.leads else callbacks.written
        if not is_told:
            callbacks.epoch_ends(number, progress.logs)
        # Rank 0 was lost after the others had called theirs, or this rank 0 was behind them.
        elif callbacks.leads and not is_written:
            callbacks.write_epoch(number, progress.logs)
        if not loop.meet(self._settle):
            return
        if self._has_next():
            self._call.model.reset_metrics()
            self._callbacks.epoch_begins(self._epoch())
            loop.meet(lambda meeting: meeting.take(loop.agreed_variables()))

    def _begin_the_end(self, _: PeerGroup) -> None:
        """Statistics are the job's from here; the numbers of the epoch are those that callbacks were told, if any."""
        progress = self._progress
        self._loop.average_statistics()
        if progress.called < progress.ended:
            progress.logs = {}

    def _find_numbers(self) -> bool:
        """The numbers of an epoch are rank 0's: a validation may round otherwise on another machine."""
        own = self._numbers()

        def agree(meeting: PeerGroup) -> None:
            self._progress.logs = unpack(meeting.from_coordinator(pack(own) if meeting.leads else b""))

        return own is not None and self._loop.meet(agree)

    def _settle(self, meeting: PeerGroup) -> None:
        """What the callbacks have left is rank 0's; the epoch is concluded."""
        progress, model = self._progress, self._call.model
        first_batch = self._next_first_batch()
        own = {"stops": bool(model.stop_training), "first_batch": first_batch}
        agreed = unpack(meeting.from_coordinator(pack(own) if meeting.leads else b""))
        if first_batch >= 0:
            self._call.data.refuse_other(progress.ended + 1, coordinators=agreed["first_batch"])
        self._callbacks.agree(meeting, "writers")
        meeting.take(self._loop.agreed_variables())
        self._tell_if_unheeded(stops=agreed["stops"] or progress.stops or self._training.stopped)
        model.stop_training = agreed["stops"]
        self._asks_to_stop.assign(0.0)  # what only this peer has asked for is passed over
        progress.ended, progress.batch, progress.validation = progress.ended + 1, 0, None
        if agreed["stops"] or progress.stops or self._training.stopped:
            progress.concluded = progress.ended

    def _next_first_batch(self) -> int:
        """Of the epoch that has begun, if one has; the loader has its first batch already."""
        begun = self._loop.position().epoch
        return self._call.data.first_batch_of(begun) if begun > self._progress.ended else -1

    def _numbers(self) -> dict[str, Any] | None:
        """The metrics of the epoch and of a validation, over all peers; ``None`` where peers were lost over it."""
        arguments = self._call.arguments
        logs = dict(self._logs.so_far())  # the metrics hold them from here
        if self._call.data.validation is None or not _validates(self._epoch(), arguments["validation_freq"]):
            return logs
        validation = self._validation()
        found = validation.attempt(self._loop.meet)
        if found is None:
            return None
        if validation.differs and self._training.rank == 0 and not self._said:
            self._said = True
            print(_NOT_SHARED, file=sys.stderr)
        return {**logs, **{f"val_{name}": plain_number(value) for name, value in found.items()}}

    def _validation(self) -> Validation:
        """Of the end of the epoch that is under way."""
        arguments, progress = self._call.arguments, self._progress
        if progress.validation is None:
            data = zip(("x", "y", "sample_weight"), self._call.data.validation or (), strict=True)
            batch_size = arguments["validation_batch_size"] or arguments["batch_size"]
            given = {**dict(data), "steps": arguments["validation_steps"], "batch_size": batch_size}
            combine = self._call.combine
            progress.validation = Validation(self._call.model, given, self._callbacks.running, combine)
        return progress.validation

    def _begins_with(self) -> int:
        """The number of the first epoch: another one where a callback of rank 0 has restored what it had backed up."""
        return restored_epoch(self._call.model) or self._begins if self._callbacks.restores else self._begins

    def _epoch(self) -> int:
        """The epoch after those that are concluded, as Keras counts it."""
        return self._begins + self._progress.ended

    def _has_next(self) -> bool:
        return not self._progress.is_concluded and self._epoch() < self._call.arguments["epochs"]

    def _conclude(self) -> None:
        """After the last epoch: averages of weights are put in place, and the callbacks told of the end."""
        model, self._progress.over = self._call.model, True
        if model.optimizer is not None:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._callbacks.end(self._progress.logs)

    def _part(self) -> None:
        """Before the last barrier, in each view that comes to it: what the callbacks have left is rank 0's."""
        progress, loop = self._progress, self._loop
        while not self._training.left and progress.parted != (version := loop.position().version):
            if version != progress.version:  # peers were lost over it
                progress.version = version if loop.meet(self._enter) else progress.version
                continue
            if loop.meet(lambda meeting: meeting.take(loop.agreed_variables())):
                progress.parted = version
                loop.end_phase(self._call.connection, self._call.outcome())


def _validates(epoch: int, frequency: Any) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency
