"""The next action of a peer in a ``fit``: a pure function of its progress, the job's position, and a reported state.

`kungfu.keras.loop` performs the action, records it (`Progress.after`), and decides again. All peers of the view perform
an action in *italics* together. If peers are lost during such an action, it is not recorded, and the other peers enter
another view.

| view    | position                  | the progress of this peer         | next                                       |
| ------- | ------------------------- | --------------------------------- | ------------------------------------------ |
| any     | any                       | all steps of an execution are     | end batch                                  |
|         |                           | done, and its end was not called  |                                            |
| new     | any                       | no state is reported              | *enter view*: a peer reports its state,    |
|         |                           |                                   | which all adopt                            |
| new     | any                       | its callbacks had fewer calls     | the first missing call, see below          |
|         |                           | than those of the reported state  |                                            |
| new     | any                       | its callbacks had as many calls   | *adopt state*: sets callbacks' attributes  |
|         |                           |                                   | and changed variables to that peer's       |
| entered | in the epoch after the    | no execution has begun            | begin batch                                |
|         | concluded ones            |                                   |                                            |
| entered | the same                  | an execution has begun            | *step*                                     |
| entered | in a later epoch, or      | an execution has begun            | end batch                                  |
|         | training stops in this    |                                   |                                            |
| entered | the same                  | nothing in this view              | *average*: averages layers' statistics     |
| entered | the same                  | averaged, and no numbers          | *find numbers*: sets them to rank 0's      |
| entered | the same                  | numbers                           | end epoch                                  |
| entered | the same                  | the epoch's end was called, but,  | write epoch                                |
|         |                           | on rank 0, not for the writers    |                                            |
| entered | the same                  | the epoch's end was called for    | *conclude epoch*: sets callbacks' changes  |
|         |                           | all callbacks                     | to rank 0's                                |
| entered | the epoch is concluded,   | concluded in this view            | begin epoch                                |
|         | and another one follows   |                                   |                                            |
| entered | the same                  | the epoch's beginning was called  | *share*: sets callbacks' changes since     |
|         |                           |                                   | then to rank 0's                           |
| entered | training stops, or no     | nothing                           | end training                               |
|         | epoch is left             |                                   |                                            |
| entered | the same                  | the end of training was called    | *share last*: as *share*                   |
| entered | the same                  | shared last in this view          | *finish*: the last barrier                 |

The missing calls of a peer's callbacks, in the order in which they are made. *Adopt state* follows, and overwrites the
changes made in these calls.

| the last calls                     | the reported state is     | call                                            |
| ---------------------------------- | ------------------------- | ----------------------------------------------- |
| an execution begins                | in another, or in none    | end batch: its last known step                  |
| no call of a validation            | in or after validation    | begin test                                      |
| a validation begins                | after the validation      | end test                                        |
| no call of an epoch's end          | after the epoch's end     | hear of epoch: without the writers, which rank  |
|                                    |                           | 0 calls                                         |
| no call of an epoch's beginning    | in the epoch              | begin epoch                                     |
| no call of an execution            | in the execution          | begin batch                                     |
| no call of the end of training     | after the end of training | end training                                    |

The callbacks of a joining peer had no calls. They are called only for the epoch and the execution under way, not for
finished epochs and executions.

A peer is ahead of another by at most one message and the actions up to the next message. After a loss, a lagging peer's
state does not count until the peer has *adopted* a state, so the reported state never lacks a call that another peer
has made. Writers (callbacks that only write) run on rank 0 alone. If rank 0 is lost, the writers' progress is unknown:
the next rank 0 writes the unfinished epoch again, from the attributes at the conclusion of the previous epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kungfu.training.graph.step_report import StepPosition

BatchCall = Literal["begin batch", "end batch", "begin test", "end test"]
EpochCall = Literal["begin epoch", "end epoch", "hear of epoch", "write epoch", "end training"]
Exchange = Literal["enter view", "adopt state", "average", "find numbers", "conclude epoch", "share", "share last"]


@dataclass(frozen=True)
class Action:
    """An action of a peer.

    Args:
        number: The batch or epoch for which callbacks are called, counted from 0 in this ``fit``.
    """

    what: BatchCall | EpochCall | Exchange | Literal["step", "finish"]
    number: int = 0


@dataclass(frozen=True)
class FitState:
    """The decisions of a ``fit`` and the callbacks' calls so far; equal on all peers, and adopted in a new view.

    Args:
        ended: The number of concluded epochs.
        begun_epoch: The last epoch for which ``on_epoch_begin`` was called.
        batch: The number of finished steps in the present epoch.
        open_batch: The first step of the execution that has begun, but not ended, for callbacks; -1 if there is none.
        tested: The number of calls made for the validation of the present epoch: 0, 1 or 2.
        found: The results of that validation, by name.
        end_called: The last epoch for which ``on_epoch_end`` was called.
        logs: The logs of that epoch, or of the epoch that is ending.
        stops: True if rank 0 requests the end of training after the last finished step.
        epochs_in_all: The final number of epochs; -1 while undecided.
        over: True if ``on_train_end`` was called.
    """

    ended: int = 0
    begun_epoch: int = -1
    batch: int = 0
    open_batch: int = -1
    tested: int = 0
    found: dict[str, Any] = field(default_factory=dict)
    end_called: int = -1
    logs: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    epochs_in_all: int = -1
    over: bool = False

    @property
    def fit_state(self) -> dict[str, Any]:
        """The fields of `FitState`, by name, as this peer reports them to other peers."""
        return {one.name: getattr(self, one.name) for one in fields(FitState)}


@dataclass(frozen=True)
class Progress(FitState):
    """The progress of one peer in a ``fit``: its `FitState`, and fields that are not sent to other peers.

    Args:
        execution: The number of steps in an execution (Keras' ``steps_per_execution``).
        leads: True if the writers (callbacks that only write) run on this peer.
        written: The last epoch for which the writers' ``on_epoch_end`` was called, as far as this peer knows.
        agreed_on: "averaged" or "concluded" once this view's peers did so together at an epoch's end; "" before that.
        shared_last: The version of the view in which peers shared the callbacks' changes at the end of training.
    """

    epochs: int = 0
    execution: int = 1
    leads: bool = False
    written: int = -1
    version: int = -1
    agreed_on: Literal["", "averaged", "concluded"] = ""
    shared_last: int = -1

    def _with(self, **changes: Any) -> Progress:
        """A copy with some fields changed, several times faster than ``dataclasses.replace``; a step needs three."""
        made = object.__new__(Progress)
        made.__dict__.update(self.__dict__, **changes)
        return made

    def has_epoch_after(self, at: FitState) -> bool:
        """True if another epoch follows after the ``at.ended`` epochs that are concluded in the state ``at``."""
        return at.epochs_in_all != at.ended and at.ended < self.epochs

    def is_over(self, *, stopped: bool) -> bool:
        """True if no further step follows; ``stopped`` is True if a policy or a request has ended training."""
        return stopped or self.stops or not self.has_epoch_after(self)

    def updated_by(self, reported: FitState) -> Progress:
        """The progress with the logs and validation results of ``reported``, for the callbacks' calls that are missing.

        If this peer's callbacks had no calls yet, only calls of the present epoch are missing.
        """
        if self.begun_epoch >= 0:
            return self._with(logs=reported.logs, found=reported.found)
        begun = min(reported.begun_epoch, reported.ended - 1)
        return self._with(**reported.fit_state | {"open_batch": -1, "begun_epoch": begun, "over": False})

    def after(self, action: Action) -> Progress:
        """The progress after ``action``, which yields no values to record."""
        match action.what:
            case "begin batch":
                # A lagging peer may still have the step count of the previous epoch.
                return self._with(open_batch=action.number, batch=action.number)
            case "end batch":
                return self._with(open_batch=-1)
            case "begin test" | "end test":
                return self._with(tested=1 if action.what == "begin test" else 2)
            case "end epoch":
                return self._with(end_called=action.number, written=action.number if self.leads else self.written)
            case "hear of epoch":
                return self._with(end_called=action.number)
            case "write epoch":
                return self._with(written=action.number)
            case "begin epoch":
                return self._with(begun_epoch=action.number)
            case "end training":
                return self._with(over=True)
            case "average":
                # Logs that were already passed to callbacks stay.
                return self._with(agreed_on="averaged", logs={} if self.end_called < self.ended else self.logs)
            case "share":
                return self._with(agreed_on="")
            case "share last":
                return self._with(shared_last=self.version)
        return self

    def stepped(self, *, stops: bool) -> Progress:
        """The progress after a step that counts; ``stops`` is rank 0's decision to end training after that step."""
        return self._with(batch=self.batch + 1, stops=stops)

    def with_epoch_concluded(self, *, stops: bool) -> Progress:
        """The progress after an epoch's conclusion; if ``stops``, the epoch is the last."""
        ended = self.ended + 1
        at = self._with(ended=ended, batch=0, tested=0, found={}, epochs_in_all=ended if stops else self.epochs_in_all)
        return at._with(agreed_on="concluded" if at.has_epoch_after(at) else "")

    def in_view(self, reported: FitState, *, version: int, leads: bool) -> Progress:
        """The progress of this peer after it has entered a new view and adopted the state of the reporting peer."""
        # The reporting peer may not have called its callbacks for the first epoch yet.
        at = reported.fit_state | {"begun_epoch": self.begun_epoch}
        return self._with(**at, version=version, leads=leads, agreed_on="")


_STEP = Action("step")


def decide(
    progress: Progress, position: StepPosition, reported: FitState | None = None, *, stopped: bool = False
) -> Action:
    """The next action of a peer, from its progress and the position of the job.

    Args:
        position: The position of the job after its last step (epoch, offset, view), as this peer knows it.
        reported: The state from which all peers of a new view continue, once it is reported.
    """
    # This precedes the entry into a view that the step's barrier made: joiners of that view did none of these steps.
    if 0 <= progress.open_batch <= progress.batch - progress.execution:
        return Action("end batch", progress.batch - 1)
    if position.version != progress.version:
        return Action("enter view") if reported is None else _catch_up(progress, reported)
    if progress.agreed_on == "concluded":
        is_begun = progress.begun_epoch >= progress.ended
        return Action("share") if is_begun else Action("begin epoch", progress.ended)
    if _epoch_is_over(progress, position, stopped=stopped):
        return _end_epoch(progress)
    if not progress.is_over(stopped=stopped):
        begins = progress.open_batch < 0 and progress.batch % progress.execution == 0
        return Action("begin batch", progress.batch) if begins else _STEP
    if not progress.over:
        return Action("end training")
    return Action("share last") if progress.shared_last != progress.version else Action("finish")


def _epoch_is_over(progress: Progress, position: StepPosition, *, stopped: bool) -> bool:
    if progress.epochs_in_all == progress.ended:
        return False
    is_cut_short = (progress.stops or stopped) and position.offset > 0
    return is_cut_short or position.epoch > progress.ended


def _end_epoch(progress: Progress) -> Action:
    """The next action at the end of the present epoch."""
    epoch = progress.ended
    if progress.open_batch >= 0:
        # The epoch may end before the execution does.
        return Action("end batch", progress.batch - 1)
    if not progress.agreed_on:
        return Action("average")
    if not progress.logs:
        # Rank 0's callbacks have not been called, so the logs are still missing.
        return Action("find numbers")
    if progress.end_called < epoch:
        return Action("end epoch", epoch)
    if progress.leads and progress.written < epoch:
        # The previous rank 0 was lost after the others' calls, or this rank 0 was behind them.
        return Action("write epoch", epoch)
    return Action("conclude epoch")


def _catch_up(progress: Progress, reported: FitState) -> Action:
    """The first call that this peer's callbacks lack, compared with ``reported``; "adopt state" if they lack none."""
    if progress.open_batch >= 0 and reported.open_batch != progress.open_batch:
        # The execution is over on the reporting peer; this peer may not know its first step.
        return Action("end batch", max(reported.batch, progress.batch, progress.open_batch + 1) - 1)
    if reported.tested > progress.tested:
        return Action("begin test" if progress.tested == 0 else "end test")
    if reported.end_called > progress.end_called:
        return Action("hear of epoch", reported.end_called)
    if progress.begun_epoch < reported.ended and progress.has_epoch_after(reported):
        return Action("begin epoch", reported.ended)
    if reported.open_batch >= 0 and progress.open_batch < 0:
        return Action("begin batch", reported.open_batch)
    if reported.over and not progress.over:
        return Action("end training")
    return Action("adopt state")
