"""The next action of a peer in a ``fit``: a pure function of its progress, the job's position, and a reported state.

`kungfu.keras.loop` performs the action, notes it (`Progress.after`), and asks again. An action in *italics* is done by
all peers of the view together. If peers are lost over one, nothing is noted, and the others are in another view.

| view    | position                  | the progress of this peer         | next                                       |
| ------- | ------------------------- | --------------------------------- | ------------------------------------------ |
| any     | any                       | all steps of an execution are     | end batch                                  |
|         |                           | done, and its end was not called  |                                            |
| new     | any                       | no state is reported              | *enter view*: a peer reports its state,    |
|         |                           |                                   | which all adopt                            |
| new     | any                       | its callbacks had fewer calls     | the first call that they lack, see below   |
|         |                           | than those of the reported state  |                                            |
| new     | any                       | they had as many                  | *adopt state*: what callbacks keep and     |
|         |                           |                                   | have left is that peer's                   |
| entered | in the epoch after the    | no execution has begun            | begin batch                                |
|         | concluded ones            |                                   |                                            |
| entered | the same                  | one has begun                     | *step*                                     |
| entered | in a later epoch, or      | an execution has begun            | end batch                                  |
|         | training stops in this    |                                   |                                            |
| entered | the same                  | nothing in this view              | *average*: statistics are the job's        |
| entered | the same                  | averaged, and no numbers          | *find numbers*: they are rank 0's          |
| entered | the same                  | numbers                           | end epoch                                  |
| entered | the same                  | its end was called, but on rank 0 | write epoch                                |
|         |                           | not for those that write          |                                            |
| entered | the same                  | its end was called for all        | *conclude epoch*: what callbacks have left |
|         |                           |                                   | is rank 0's                                |
| entered | the epoch is concluded,   | concluded in this view            | begin epoch                                |
|         | and another one follows   |                                   |                                            |
| entered | the same                  | its beginning was called          | *share*: what callbacks have left since is |
|         |                           |                                   | rank 0's                                   |
| entered | training stops, or no     | nothing                           | end training                               |
|         | epoch is left             |                                   |                                            |
| entered | the same                  | its end was called                | *share last*: as *share*                   |
| entered | the same                  | shared last in this view          | *finish*: the last barrier                 |

The calls that the callbacks of a peer lack, in the order in which they are made. What they do then does not last: it is
followed by *adopt state*.

| the last calls                     | the reported state is     | call                                            |
| ---------------------------------- | ------------------------- | ----------------------------------------------- |
| an execution begins                | in another one, or none   | end batch: its last step, as far as is known    |
| none of a validation               | in it, or after it        | begin test                                      |
| a validation begins                | after it                  | end test                                        |
| none of the end of an epoch        | after it                  | hear of epoch: without those that write, which  |
|                                    |                           | are left to rank 0                              |
| none of the beginning of an epoch  | in it                     | begin epoch                                     |
| none of an execution               | in it                     | begin batch                                     |
| none of the end of training        | after it                  | end training                                    |

The callbacks of a peer that joins had no calls. They get none for what was before, only for what continues in that
state.

Of two peers one is ahead by at most one message, and with it by what is done before the next one. A peer that lags
behind holds no state that counts, from a loss on until it has *adopted* one: so the reported state never lacks a call
that another peer has made. Those that write run on rank 0 alone, and if it is lost no peer knows how far they came: the
next rank 0 writes the epoch that was not concluded again, after what was kept of them when the one before it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kungfu.training.graph.step_report import StepPosition

Call = Literal[
    "begin batch",
    "end batch",
    "begin test",
    "end test",
    "end epoch",
    "hear of epoch",
    "write epoch",
    "begin epoch",
    "end training",
]
Exchange = Literal["enter view", "adopt state", "average", "find numbers", "conclude epoch", "share", "share last"]


@dataclass(frozen=True)
class Action:
    """An action of a peer.

    Args:
        what: Its row in the table.
        number: Of the batch or the epoch that callbacks are called for, from 0 in this ``fit``.
    """

    what: Call | Exchange | Literal["step", "finish"]
    number: int = 0


@dataclass(frozen=True)
class FitState:
    """The decisions and calls of callbacks so far, as far as all peers share them; one in a new view adopts them.

    Args:
        ended: The epochs that were concluded.
        begun_epoch: The last epoch whose beginning was called.
        batch: The steps of the epoch under way that are done.
        open_batch: The first step of the execution whose beginning was called, and its end not yet; -1 for none.
        tested: The calls for a validation of the epoch under way that were made, of two.
        found: What came of that validation, by name.
        end_called: The last epoch whose end was called.
        logs: The numbers of that epoch, or of the one that ends.
        stops: True if rank 0 wants training to end after the last finished step.
        epochs_in_all: The epochs after which none begins; -1 while that is undecided.
        over: True if callbacks were called for the end of training.
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
        """The state of the fit as it is reported to other peers."""
        return {one.name: getattr(self, one.name) for one in fields(FitState)}


@dataclass(frozen=True)
class Progress(FitState):
    """The progress of a peer in the work between two steps.

    Args:
        epochs: Those that this ``fit`` has to do.
        execution: The steps of an execution.
        leads: Whether the callbacks that write run on this peer.
        written: The last epoch whose end was called for those that write, as far as this peer knows.
        version: The version of the view that this peer has entered.
        agreed_on: The last agreement of the peers of this view about the end of an epoch.
        shared_last: The view in which all have agreed on what callbacks have left at the end of training.
    """

    epochs: int = 0
    execution: int = 1
    leads: bool = False
    written: int = -1
    version: int = -1
    agreed_on: Literal["", "averaged", "concluded"] = ""
    shared_last: int = -1

    def _with(self, **changes: Any) -> Progress:
        """Replaces fields as ``dataclasses.replace`` does, several times as fast: a step needs it three times."""
        made = object.__new__(Progress)
        made.__dict__.update(self.__dict__, **changes)
        return made

    def has_epoch_after(self, at: FitState) -> bool:
        """True if another epoch is to be done after those of a state."""
        return at.epochs_in_all != at.ended and at.ended < self.epochs

    def is_over(self, *, stopped: bool) -> bool:
        """True if no further step is to be done; ``stopped`` if a policy or a request has ended training."""
        return stopped or self.stops or not self.has_epoch_after(self)

    def updated_by(self, reported: FitState) -> Progress:
        """The progress, with the numbers of a reported state, for the calls that the callbacks lack.

        Callbacks that have seen no epoch yet are called for the one under way only.

        Args:
            reported: The state of the peer from which all continue.
        """
        if self.begun_epoch >= 0:
            return self._with(logs=reported.logs, found=reported.found)
        begun = min(reported.begun_epoch, reported.ended - 1)
        return self._with(**reported.fit_state | {"open_batch": -1, "begun_epoch": begun, "over": False})

    def after(self, action: Action) -> Progress:
        """The progress after an action whose result is no more than that it was done."""
        match action.what:
            case "begin batch":
                # One that lags may still count the steps of the epoch before: they are none of this execution's.
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
                # The numbers of an epoch are those that callbacks were called with, if they were.
                return self._with(agreed_on="averaged", logs={} if self.end_called < self.ended else self.logs)
            case "share":
                return self._with(agreed_on="")
            case "share last":
                return self._with(shared_last=self.version)
        return self

    def stepped(self, *, stops: bool) -> Progress:
        """After a step that counts, of which rank 0 says whether training ends after it."""
        return self._with(batch=self.batch + 1, stops=stops)

    def with_epoch_concluded(self, *, stops: bool) -> Progress:
        """After the end of an epoch, the last one where training stops."""
        ended = self.ended + 1
        at = self._with(ended=ended, batch=0, tested=0, found={}, epochs_in_all=ended if stops else self.epochs_in_all)
        return at._with(agreed_on="concluded" if at.has_epoch_after(at) else "")

    def in_view(self, reported: FitState, *, version: int, leads: bool) -> Progress:
        """In a new view, with the state of the reporting peer."""
        # For the first epoch the reporting peer calls its own no sooner.
        at = reported.fit_state | {"begun_epoch": self.begun_epoch}
        return self._with(**at, version=version, leads=leads, agreed_on="")


_STEP = Action("step")


def decide(
    progress: Progress, position: StepPosition, reported: FitState | None = None, *, stopped: bool = False
) -> Action:
    """The next action of a peer.

    Args:
        progress: How far it is.
        position: Where the job is, in the view that this peer is in.
        reported: The state of the peer from which all continue, once it was reported in a new view.
        stopped: Whether a policy or a request has ended training.
    """
    # Before a view that the barrier of this very step has made: who joins there has done none of these steps.
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
    """The end of the epoch after those that are concluded."""
    epoch = progress.ended
    if progress.open_batch >= 0:
        # The epoch may end before the execution does.
        return Action("end batch", progress.batch - 1)
    if not progress.agreed_on:
        return Action("average")
    if not progress.logs:
        # Rank 0's callbacks have not been called: the numbers are to be found yet.
        return Action("find numbers")
    if progress.end_called < epoch:
        return Action("end epoch", epoch)
    if progress.leads and progress.written < epoch:
        # Rank 0 was lost after the others had called theirs, or this rank 0 was behind them.
        return Action("write epoch", epoch)
    return Action("conclude epoch")


def _catch_up(progress: Progress, reported: FitState) -> Action:
    """The first call that the callbacks lack, up to those of the reported state."""
    if progress.open_batch >= 0 and reported.open_batch != progress.open_batch:
        # It is over there; of its first step this peer may not know.
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
