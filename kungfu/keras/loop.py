"""``fit`` in a job: Keras' loop over epochs and batches, with peers that join and leave.

Keras' loop fetches batches ahead and calls callbacks for each of them. In a job a batch becomes stale when the
membership changes, and is repeated. So kungfu has its own loop, which calls parts of Keras (callbacks, ``evaluate``,
metrics). Each peer runs the loop in its own program.

`kungfu.keras.next_action` decides the next action: its table is the protocol of the peers. This module performs the
actions, one method for each. If peers are lost during an action, the others recover as in a step, and decide again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from kungfu.framework_internals import restored_epoch
from kungfu.keras.callbacks import Group, JobCallbacks, verbosity
from kungfu.keras.data.fit_data import refuse_other_batch
from kungfu.keras.evaluation.numbered_batches import numbered_batches
from kungfu.keras.evaluation.shared_pass import SharedEvaluation, SharedPass
from kungfu.keras.fits import Evaluations, adopt_outcome, pack_outcome
from kungfu.keras.metrics import JobLogs, plain_number
from kungfu.keras.next_action import Action, FitState, Progress, decide
from kungfu.keras.plain_values import agreed, pack, unpack
from kungfu.training import Training
from kungfu.training.data import BatchPlan
from kungfu.training.data.stream import DataEndedError
from kungfu.training.graph.combined_metrics import Combination
from kungfu.training.loop import barrier
from kungfu.training.loop.batches import count_epochs, declare_batches, loop_batches
from kungfu.training.loop.between_steps import complete_state
from kungfu.training.loop.job_connection import JobConnection
from kungfu.training.loop.step_calls import SKIPPED, StepCalls
from kungfu.training.state.registered_sync import PeerGroup

_CALLBACKS = "fit.npz"  # in a checkpoint
_UNHEEDED = (
    "kungfu: a callback has set model.stop_training on this peer, and not on rank 0, whose word counts: training goes "
    "on; let callbacks decide by what all peers have alike, as the logs, or call stop() of what attach() gave on rank 0"
)

_NOT_SHARED = (
    "kungfu: the validation of model.fit() is not shared among the peers: on some its data come in another order, or "
    "with other inputs. Each peer does the whole, and the numbers are rank 0's"
)


class FitRun:
    """One ``fit`` on one peer of a job: the peer trains in the fit, or skips a fit that is already finished.

    Raises ``UsageError`` if a callback cannot run in a job."""

    def __init__(
        self,
        model: Any,
        arguments: Mapping[str, Any],
        plan: BatchPlan,
        validation: tuple[Any, Any, Any] | None,
        connection: JobConnection,
        *,
        combine: Mapping[str, Combination] = MappingProxyType({}),
    ) -> None:
        self._model, self._arguments, self._plan, self._connection = model, arguments, plan, connection
        self._validation_data, self._combine, self.evaluations = validation, combine, Evaluations()
        self._callbacks = JobCallbacks(
            arguments["callbacks"] or [],
            model,
            verbose=verbosity(arguments["verbose"]),
            params={"epochs": arguments["epochs"], "steps": -(-plan.samples // plan.batch_size)},
        )
        self._begins = int(arguments["initial_epoch"])
        self._progress = Progress(epochs=self._epochs_left(), execution=int(model.steps_per_execution))
        self._validation: tuple[SharedPass, SharedEvaluation] | None = None  # of the present epoch
        self._warned = set[str]()
        self._data_ended = False  # in the middle of an epoch

    @property
    def described(self) -> list[str]:
        """The parts of the call of ``fit`` that must be equal on all peers, as texts."""
        arguments, plan, weights = self._arguments, self._plan, self._arguments["class_weight"]
        names = () if self._validation_data is None else ("freq", "steps", "batch_size")
        validates = [f"validation_{name}={arguments[f'validation_{name}']}" for name in names]
        return [
            f"number {self._connection.phase} of the program",
            f"epochs={arguments['epochs']}",
            f"initial_epoch={arguments['initial_epoch']}",
            f"{plan.source.samples} samples",
            ", ".join([f"batches of {plan.batch_size}", *validates]),
            *([] if weights is None else [f"class_weight={_in_order(weights)}"]),
        ]

    def run_empty(self) -> Any:
        """Runs a ``fit`` without epochs: only calls the callbacks for the beginning and the end of training."""
        self._model.stop_training = False
        self._callbacks.begin()
        self._callbacks.lead(takes_over=False)
        self._callbacks.running.on_train_end({})
        return self._model.history

    def skip(self, content: bytes) -> Any:
        """Skips this fit, which the others have finished: adopts its outcome, and returns its History."""
        self._connection.run = adopt_outcome(
            content, self._model, self._callbacks, self.evaluations, described=self.described
        )
        self._connection.passes = True
        x = self._arguments["x"]
        # A Dataset that reshuffles on each reading must be read as often as on the other peers.
        if isinstance(x, tf.data.Dataset):
            for _ in range(1 if self._arguments["steps_per_epoch"] else len(self._model.history.epoch)):
                next(iter(x), None)
        return self._model.history

    def train(self, calls: StepCalls, step: Callable[[Any], Any], logs: JobLogs, *, stop_requested: tf.Variable) -> Any:
        """Trains to the end; returns the model's ``History``, which on a removed peer ends at the removal.

        ``stop_requested`` is 1.0 if a callback of this peer requests the end of training.
        """
        self._calls, self._run = calls, calls.run
        self._step, self._stop_requested, self._logs = step, stop_requested, logs
        training = Training(calls)
        training.register("fit/epochs_ended", lambda: self._progress.ended, self._set_ended)
        for index, total in enumerate(logs.totals):
            training.register(f"fit/totals/{index}", total)
        self._run.checkpoints.keep(_CALLBACKS, self._kept)
        declared = self._run.declared
        declared.described, declared.has_loop_state = [*self.described, *declared.described], True
        self._model.stop_training = False
        try:
            self._train()
            # The callbacks' ``on_train_end`` and later fits find the model that a rule has restored.
            if self._calls.has_view and not self._run.left and barrier.restore_last(self._run):
                self._calls.exchange(lambda _: None)
            self._go_on("share last")
            # The actions before the last barrier, in each view that reaches this barrier.
            calls.finish(lambda: self._go_on("finish"))
        except BaseException:
            calls.abandon()
            raise
        return self._model.history

    def _train(self) -> None:
        """Performs steps and the actions between them until training ends or a decision removes this peer."""
        run = self._run
        declare_batches(self._calls, self._plan)
        try:
            for batch in loop_batches(
                self._calls,
                self._plan,
                over=lambda: run.left or self._progress.is_over(stopped=run.stopped),
                between_steps=lambda: self._go_on("begin batch", "step", "end training"),
            ):
                # Without a view the first call of the step only joins.
                if self._calls.has_view and self._go_on("step", "end training") != "step":
                    break
                self._do_step(batch)
        except DataEndedError as error:
            # Raised on all peers at the same step: they read the same data. Training ends with the data, as in Keras.
            print(f"kungfu: model.fit() ends before its last epoch: {error}", file=sys.stderr)
            self._progress, self._data_ended = replace(self._progress, stops=True), True

    def _logs_so_far(self) -> dict[str, Any]:
        """The logs of the epoch; in a run that averages models, as of the last average, and empty before the first."""
        models = self._run.models
        is_known = models is None or models.summed_at > self._run.steps() - self._progress.batch
        return self._logs.so_far() if is_known else {}

    def _epochs_left(self) -> int:
        return max(0, int(self._arguments["epochs"]) - self._begins)

    def _do_step(self, batch: Any) -> None:
        if self._model.stop_training:  # set by a callback after the previous step; training ends with this step
            self._stop_requested.assign(1.0)
        stops = self._calls.call(self._step, (batch,), {})
        # The batch was cut for another view, or peers were lost in the step: the loader cuts the batch again.
        if stops is SKIPPED:
            return
        self._progress = self._progress.stepped(stops=bool(stops.numpy() > 0))
        # Between two averages of models the peers tell each other nothing.
        models = self._run.models
        is_heard = models is None or models.is_synchronising
        self._warn_once(_UNHEEDED, where=is_heard and self._model.stop_training and not self._progress.stops)
        # The callbacks are called now, because their call must not wait for the next batch.
        if (action := self._next()).what == "end batch":
            self._call_back(action)

    def _warn_once(self, text: str, *, where: bool) -> None:
        if where and text not in self._warned:
            self._warned.add(text)
            print(text, file=sys.stderr)

    # ---- the next action -------------------------------------------------------------------------------------------

    def _next(self, reported: FitState | None = None) -> Action:
        return decide(self._progress, self._calls.position(), reported, stopped=self._run.stopped)

    def _go_on(self, *until: str) -> str:
        """Performs actions until the next action is in ``until``; returns its name, or "finish" on a removed peer."""
        while not self._run.left:
            action = self._next()
            if action.what in until:
                return action.what
            self._do(action)
        return "finish"

    def _do(self, action: Action) -> None:
        match action.what:
            case "enter view":
                self._calls.exchange(self._enter_view)
            case "average":
                self._calls.exchange(lambda _: self._average(action))
            case "find numbers":
                self._find_numbers()
            case "conclude epoch":
                self._calls.exchange(self._conclude_epoch)
            case "share" | "share last":
                self._calls.exchange(lambda peers: self._share(peers, action))
            case _:
                self._call_back(action)

    def _call_back(self, action: Action) -> None:
        """Makes the callbacks' calls that an action requires; Keras' epoch numbers begin at ``initial_epoch``."""
        callbacks, model, number, logs = self._callbacks, self._model, action.number, self._progress.logs
        match action.what:
            case "begin batch":
                callbacks.batch_begins(number)
            case "end batch":
                callbacks.batch_ends(number, self._logs_so_far)
            case "begin test":
                callbacks.running.on_test_begin()
            case "end test":
                callbacks.running.on_test_end(self._progress.found)
            case "end epoch":
                callbacks.epoch_ends(self._begins + number, logs)
            case "hear of epoch":
                callbacks.epoch_ended(self._begins + number, logs)
            case "write epoch":
                callbacks.write_epoch(self._begins + number, logs)
            case "begin epoch":
                model.reset_metrics()
                callbacks.epoch_begins(self._begins + number)
            case "end training":
                if model.optimizer is not None:  # the optimizer may replace weights by their averages
                    model.optimizer.finalize_variable_values(model.trainable_weights)
                callbacks.running.on_train_end(logs)
            case _:
                raise AssertionError(f"{action} at {self._progress}")
        self._progress = self._progress.after(action)

    # ---- a new view ------------------------------------------------------------------------------------------------

    def _enter_view(self, peers: PeerGroup) -> None:
        """Sets all peers to one peer's state, including callbacks' attributes and variables changed by callbacks."""
        callbacks, is_first = self._callbacks, self._progress.version < 0
        resumed = self._run.checkpoints.resumed_file(_CALLBACKS) if is_first else None
        held = self._run.state.agreed() if resumed is not None else []
        before = [tf.identity(one) for one in held]
        if resumed is not None:
            callbacks.append_logs()
        callbacks.begin()
        # No peer is in this fit yet: a callback of rank 0 may restore a backup, and all peers continue from it.
        begins = not peers.any_of([not is_first])[0]
        if peers.leads and begins:
            callbacks.lead(takes_over=False)
        # Else the source is the peer that sent its variables to all: other peers' callbacks may be ahead.
        restores = begins and peers.any_of([peers.leads and callbacks.restores])[0]
        source = 0 if restores else peers.source
        reported = self._receive_state(peers, source)
        while (action := self._next(reported)).what != "adopt state":
            self._call_back(action)
        # The checkpoint contains the callbacks' changes at the beginning of its epoch: undo the changes just made.
        if resumed is not None:
            reported = self._restore(unpack(resumed), reported)
            for variable, value in zip(held, before, strict=True):
                variable.assign(value)
        self._adopt_state(peers, source, reported)

    def _receive_state(self, peers: PeerGroup, source: int) -> FitState:
        """Receives the state of rank ``source``; this peer continues from it once its callbacks have caught up."""
        # The first epoch differs if a callback of rank 0 has restored a backup.
        begins = restored_epoch(self._model) if self._callbacks.restores else None
        own = {
            "fit_state": self._progress.fit_state,
            "begins": begins or self._begins,
            "first": self._plan.first_batch_of(self._progress.ended),
            "stop_training": bool(self._model.stop_training),
        }
        received = agreed(peers, own, rank=source)
        refuse_other_batch(self._plan, self._progress.ended, coordinators=received["first"])
        self._begins, self._model.stop_training = received["begins"], received["stop_training"]
        self._stop_requested.assign(0.0)  # requested again before the next step
        epochs, number = self._epochs_left(), self._connection.phase
        count_epochs(self._run, done_before=self._begins, epochs=epochs, fit=number)
        reported = FitState(**received["fit_state"])
        self._progress = replace(self._progress.updated_by(reported), epochs=epochs)
        return reported

    def _adopt_state(self, peers: PeerGroup, source: int, reported: FitState) -> None:
        """Adopts, from rank ``source``, the attributes of callbacks and the variables that callbacks have changed."""
        callbacks, run, position = self._callbacks, self._run, self._calls.position()
        (led,) = peers.any_of([callbacks.leads])
        # The writers' attributes are rank 0's if rank 0 led before.
        if not led or source == 0:
            self._agree_on("all", peers, rank=source)
        else:
            self._agree_on("others", peers, rank=source)
            self._agree_on("writers", peers)
        # Layers' statistics are equal on all peers between two epochs, and differ within an epoch.
        is_between = position.offset == 0 or reported.end_called == reported.ended or reported.over
        peers.assign_from_rank(run.state.agreed() if is_between else run.state.shared(), rank=source)
        if peers.leads and not callbacks.leads:
            callbacks.lead(takes_over=True)
            # The previous rank 0 may not have called ``on_train_end`` of its writers.
            if reported.over:
                callbacks.end_writers(reported.logs)
        self._conclude_window()  # the survivors of a loss have averaged their models already
        self._progress = self._progress.in_view(reported, version=position.version, leads=callbacks.leads)
        complete_state(run)

    def _agree_on(self, group: Group, peers: PeerGroup, *, rank: int = 0) -> None:
        written = self._callbacks.agree(peers, group, rank=rank, written=self._progress.written)
        # Only after the attributes have arrived: a peer may be lost during their transfer.
        self._progress = replace(self._progress, written=written)

    def _conclude_window(self) -> None:
        """In a run that averages models: adds what the peers have held since the last average to the epoch's totals."""
        if self._run.models is not None:
            # The first sums are those of the metrics; the last is the request to end training.
            for total, added in zip(self._logs.totals, barrier.conclude_window(self._run), strict=False):
                total.assign_add(added)

    # ---- the end of an epoch ---------------------------------------------------------------------------------------

    def _average(self, action: Action) -> None:
        if self._data_ended:  # else the last step of the epoch has averaged
            self._conclude_window()
        barrier.average_statistics(self._run)
        self._progress = self._progress.after(action)

    def _find_numbers(self) -> None:
        """Sets the logs of an epoch to rank 0's logs, since a validation may round differently on another machine."""
        own = dict(self._logs.so_far())  # reading them sets the metrics
        arguments = self._arguments
        number, often = self._begins + self._progress.ended + 1, arguments["validation_freq"]
        is_validated = number % often == 0 if isinstance(often, int) else number in often
        if self._validation_data is not None and is_validated:
            if not self._validate():
                return
            own |= {f"val_{name}": plain_number(value) for name, value in self._progress.found.items()}

        def agree(peers: PeerGroup) -> None:
            self._progress = replace(self._progress, logs=agreed(peers, own))

        self._calls.exchange(agree)

    def _validate(self) -> bool:
        """Runs the validation over all peers; returns False if peers were lost during it."""
        if self._progress.tested == 2:
            return True
        if self._validation is None:
            arguments = self._arguments
            data = zip(("x", "y", "sample_weight"), self._validation_data or (), strict=True)
            batch_size = arguments["validation_batch_size"] or arguments["batch_size"]
            given = {**dict(data), "steps": arguments["validation_steps"], "batch_size": batch_size}
            evaluation = SharedEvaluation(self._model, given, self._callbacks.running, self._combine)
            self._validation = SharedPass(numbered_batches(given), evaluation), evaluation
        shared, evaluation = self._validation
        evaluation.began |= self._progress.tested > 0
        is_there = shared.attempt(self._calls.exchange)
        tested, found = (2, shared.result) if is_there else (int(evaluation.began), {})
        self._progress = replace(self._progress, tested=tested, found=found)
        self._warn_once(_NOT_SHARED, where=shared.differs and self._run.rank == 0)
        return is_there

    def _conclude_epoch(self, peers: PeerGroup) -> None:
        """Concludes the epoch: values that callbacks have changed become equal to rank 0's values on all peers."""
        progress = self._progress
        # The next epoch may have begun: the loader already has the first batch of that epoch.
        begun = self._calls.position().epoch
        first_batch = self._plan.first_batch_of(begun) if begun > progress.ended else -1
        received = agreed(peers, {"stops": bool(self._model.stop_training), "first_batch": first_batch})
        if first_batch >= 0:
            refuse_other_batch(self._plan, progress.ended + 1, coordinators=received["first_batch"])
        self._agree_on("writers", peers)
        peers.assign_from_rank(self._run.state.agreed())
        stops = received["stops"] or progress.stops or self._run.stopped
        self._warn_once(_UNHEEDED, where=self._model.stop_training and not stops)
        self._model.stop_training = received["stops"]
        self._stop_requested.assign(0.0)  # a request of this peer alone is ignored
        self._progress, self._validation = self._progress.with_epoch_concluded(stops=stops), None

    def _share(self, peers: PeerGroup, action: Action) -> None:
        """Shares the changes of rank 0's callbacks; at the end of training, keeps the fit's outcome for joiners."""
        peers.assign_from_rank(self._run.state.agreed())
        self._progress = self._progress.after(action)
        if action.what == "share last":
            run, connection, described = self._run, self._connection, self.described
            trained = int(run.graph_state.progress.trained.read_value())
            outcome = pack_outcome(
                self._model, self._callbacks, self.evaluations, described=described, run=connection.run
            )
            connection.end_phase(outcome, terms=run.terms, trained=trained)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _set_ended(self, ended: int) -> None:
        if ended != self._progress.ended:
            self._progress, self._validation = replace(self._progress, ended=ended), None

    def _kept(self) -> bytes:
        """The callbacks' attributes and the progress in the present epoch, as bytes for a checkpoint."""
        at = self._progress
        validation = {"began": True, "result": at.found if at.tested == 2 else None} if at.tested else None
        state = {"batch": at.batch, "begun": at.open_batch >= 0, "called": at.end_called, "logs": at.logs}
        kept = {"callbacks": self._callbacks.kept(), **state, "written": at.written, "validation": validation}
        return pack(kept)

    def _restore(self, kept: Mapping[str, Any], reported: FitState) -> FitState:
        """Restores a checkpoint's fit state, except for the end of training: a resumed run may train for longer."""
        batch, each, validation = kept["batch"], self._progress.execution, kept["validation"] or {}
        result = validation.get("result")
        state = {
            "batch": batch, "open_batch": batch // each * each if kept["begun"] else -1, "end_called": kept["called"],
            "logs": kept["logs"], "tested": int(bool(validation)) + int(result is not None), "found": result or {},
        }  # fmt: skip
        self._callbacks.resume(kept["callbacks"])
        self._progress = replace(self._progress, **state, written=kept["written"])
        return replace(reported, **state)


def _in_order(weights: Mapping[int, float]) -> str:
    """The class weights as text, with NumPy's numbers written like Python's."""
    return "{" + ", ".join(f"{name}: {float(weight):g}" for name, weight in sorted(weights.items())) + "}"
