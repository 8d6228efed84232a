"""The next action of a peer in a ``fit``: a pure function of how far it is, where the job is, and what is reported.

`kungfu.keras.loop` performs the action, notes it (`Progress.after`), and asks again. An action in *italics* is done by
all peers of the view together. Where peers are lost over one, nothing is noted, and the others are in another view.

| view    | position                  | what this peer holds              | next                                       |
| ------- | ------------------------- | --------------------------------- | ------------------------------------------ |
| any     | any                       | all steps of an execution are     | end batch                                  |
|         |                           | done, and their end was not told  |                                            |
| new     | any                       | no place is reported              | *enter*: that of a peer is reported, whose |
|         |                           |                                   | state all have                             |
| new     | any                       | its callbacks were told less than | the first call that they lack, see below   |
|         |                           | those at the reported place       |                                            |
| new     | any                       | they were told as much            | *take*: what callbacks keep and have left  |
|         |                           |                                   | is that peer's                             |
| entered | in the epoch after the    | no execution has begun            | begin batch                                |
|         | concluded ones            |                                   |                                            |
| entered | the same                  | one has begun                     | *step*                                     |
| entered | in a later epoch, or      | an execution has begun            | end batch                                  |
|         | training stops in this    |                                   |                                            |
| entered | the same                  | nothing in this view              | *average*: statistics are the job's        |
| entered | the same                  | averaged, and no numbers          | *find numbers*: they are rank 0's          |
| entered | the same                  | numbers                           | end epoch                                  |
| entered | the same                  | callbacks were told, but not on   | write epoch                                |
|         |                           | rank 0 those that write           |                                            |
| entered | the same                  | all were told                     | *settle*: what callbacks have left is      |
|         |                           |                                   | rank 0's; the epoch is concluded           |
| entered | the epoch is concluded,   | settled                           | begin epoch                                |
|         | and another one follows   |                                   |                                            |
| entered | the same                  | callbacks were told that it       | *share*: as *settle*, of what they have    |
|         |                           | begins                            | left since                                 |
| entered | training stops, or no     | nothing                           | end training                               |
|         | epoch is left             |                                   |                                            |
| entered | the same                  | callbacks were told               | *part*: as *share*                         |
| entered | the same                  | parted in this view               | *finish*: the last barrier                 |

The calls that the callbacks of a peer lack, in the order in which they are made. What they do then does not last: it is
followed by *take*.

| they were told                     | the reported place is     | call                                            |
| ---------------------------------- | ------------------------- | ----------------------------------------------- |
| that an execution begins           | in another one, or none   | end batch: its last step, as far as is known    |
| nothing of a validation            | in it, or after it        | begin test                                      |
| that a validation begins           | after it                  | end test                                        |
| nothing of the end of an epoch     | after it                  | hear of epoch: without those that write, of     |
|                                    |                           | which rank 0 takes care                         |
| nothing of the beginning of an     | in it                     | begin epoch                                     |
| epoch                              |                           |                                                 |
| nothing of an execution            | in it                     | begin batch                                     |
| nothing of the end of training     | after it                  | end training                                    |

A peer that joins was told nothing, and is not told of what was before, only of what continues at that place.

Of two peers one is ahead by at most one message, and with it by what is done before the next one. Who lags behind holds
no state that counts, from a loss on until it has *taken*: so the reported place is never behind what another peer was
told. Those that write run on rank 0 alone, and nobody knows how far they came where it was lost: the next rank 0 writes
the epoch that was not settled again, after what was kept of them when the one before it was.
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
Meeting = Literal["enter", "take", "average", "find numbers", "settle", "share", "part"]


@dataclass(frozen=True)
class Action:
    """An action of a peer.

    Args:
        what: Its row in the table.
        number: Of the batch or the epoch of which callbacks are told, from 0 in this ``fit``.
    """

    what: Call | Meeting | Literal["step", "finish"]
    number: int = 0


@dataclass(frozen=True)
class Place:
    """The decisions and calls of callbacks so far; a peer in a new view continues from those reported.

    Args:
        ended: The epochs that were concluded.
        begun_epoch: The last epoch of which callbacks were told that it begins.
        batch: The steps of the epoch under way that are done.
        begun: The first step of the execution of which callbacks were told that it begins, and not that it ends; -1
            where there is none.
        tested: The calls about a validation of the epoch under way, of two, that callbacks were told.
        found: What came of that validation, by name.
        called: The last epoch of whose end callbacks were told.
        logs: The numbers of that epoch, or of the one that ends.
        stops: True if rank 0 wants training to end after the last finished step.
        concluded: After how many epochs it was decided that no further one begins; -1 as long as it was not.
        over: True if callbacks were called for the end of training.
    """

    ended: int = 0
    begun_epoch: int = -1
    batch: int = 0
    begun: int = -1
    tested: int = 0
    found: dict[str, Any] = field(default_factory=dict)
    called: int = -1
    logs: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    concluded: int = -1
    over: bool = False

    @property
    def place(self) -> dict[str, Any]:
        """The place of a peer as it is reported to others."""
        return {one.name: getattr(self, one.name) for one in fields(Place)}


@dataclass(frozen=True)
class Progress(Place):
    """The progress of a peer in the work between two steps.

    Args:
        epochs: Those that this ``fit`` has to do.
        execution: The steps of an execution.
        leads: Whether the callbacks that write run on this peer.
        written: The last epoch of whose end those that write were told, as far as this peer knows.
        version: The version of the view that this peer has entered.
        met: What the peers of this view have come to, of the end of an epoch.
        parted: The view in which all have agreed on what callbacks have left at the end of training.
    """

    epochs: int = 0
    execution: int = 1
    leads: bool = False
    written: int = -1
    version: int = -1
    met: Literal["", "averaged", "settled"] = ""
    parted: int = -1

    def _with(self, **changes: Any) -> Progress:
        """Replaces fields as ``dataclasses.replace`` does, several times as fast: a step needs it three times."""
        made = object.__new__(Progress)
        made.__dict__.update(self.__dict__, **changes)
        return made

    def goes_on_from(self, at: Place) -> bool:
        """True if another epoch is to be done at a place."""
        return at.concluded != at.ended and at.ended < self.epochs

    def is_over(self, *, stopped: bool) -> bool:
        """True if no further step is to be done; ``stopped`` if a policy or a request has ended training."""
        return stopped or self.stops or not self.goes_on_from(self)

    def heard(self, reported: Place) -> Progress:
        """The progress by a reported place; callbacks that have seen no epoch yet are told of the one under way only.

        The calls that another one lacks are made with the numbers that the reporting one has.
        """
        if self.begun_epoch >= 0:
            return self._with(logs=reported.logs, found=reported.found)
        told = min(reported.begun_epoch, reported.ended - 1)
        return self._with(**reported.place | {"begun": -1, "begun_epoch": told, "over": False})

    def after(self, action: Action) -> Progress:
        """The progress after an action whose result is no more than that it was done."""
        match action.what:
            case "begin batch":
                return self._with(begun=action.number)
            case "end batch":
                return self._with(begun=-1)
            case "begin test" | "end test":
                return self._with(tested=1 if action.what == "begin test" else 2)
            case "end epoch":
                return self._with(called=action.number, written=action.number if self.leads else self.written)
            case "hear of epoch":
                return self._with(called=action.number)
            case "write epoch":
                return self._with(written=action.number)
            case "begin epoch":
                return self._with(begun_epoch=action.number)
            case "end training":
                return self._with(over=True)
            case "average":
                # The numbers of an epoch are those that callbacks were told, if they were.
                return self._with(met="averaged", logs={} if self.called < self.ended else self.logs)
            case "share":
                return self._with(met="")
            case "part":
                return self._with(parted=self.version)
        return self

    def stepped(self, *, stops: bool) -> Progress:
        """After a step that counts, of which rank 0 says whether training ends after it."""
        return self._with(batch=self.batch + 1, stops=stops)

    def settled(self, *, stops: bool) -> Progress:
        """After the end of an epoch, the last one where training stops."""
        ended = self.ended + 1
        at = self._with(ended=ended, batch=0, tested=0, found={}, concluded=ended if stops else self.concluded)
        return at._with(met="settled" if at.goes_on_from(at) else "")

    def entered(self, reported: Place, *, version: int, leads: bool) -> Progress:
        """In a new view, at the place of the reporting peer."""
        # Of the first epoch the reporting peer tells its own no sooner.
        at = reported.place | {"begun_epoch": self.begun_epoch}
        return self._with(**at, version=version, leads=leads, met="")


_STEP = Action("step")


def decide(
    progress: Progress, position: StepPosition, reported: Place | None = None, *, stopped: bool = False
) -> Action:
    """The next action of a peer.

    Args:
        progress: How far it is.
        position: Where the job is, in the view that this peer is in.
        reported: The place of the peer from whose state all continue, where it has been reported in a new view.
        stopped: Whether a policy or a request has ended training.
    """
    # Before a view that the barrier of this very step has made: who joins there has done none of these steps.
    if 0 <= progress.begun <= progress.batch - progress.execution:
        return Action("end batch", progress.batch - 1)
    if position.version != progress.version:
        return Action("enter") if reported is None else _catch_up(progress, reported)
    if progress.met == "settled":
        is_begun = progress.begun_epoch >= progress.ended
        return Action("share") if is_begun else Action("begin epoch", progress.ended)
    if _epoch_is_over(progress, position, stopped=stopped):
        return _end_epoch(progress)
    if not progress.is_over(stopped=stopped):
        begins = progress.begun < 0 and progress.batch % progress.execution == 0
        return Action("begin batch", progress.batch) if begins else _STEP
    if not progress.over:
        return Action("end training")
    return Action("part") if progress.parted != progress.version else Action("finish")


def _epoch_is_over(progress: Progress, position: StepPosition, *, stopped: bool) -> bool:
    if progress.concluded == progress.ended:
        return False
    is_cut_short = (progress.stops or stopped) and position.offset > 0
    return is_cut_short or position.epoch > progress.ended


def _end_epoch(progress: Progress) -> Action:
    """The end of the epoch after those that are concluded."""
    epoch = progress.ended
    if progress.begun >= 0:
        # The epoch may end before the execution does.
        return Action("end batch", progress.batch - 1)
    if not progress.met:
        return Action("average")
    if not progress.logs:
        # Rank 0's callbacks have not been called: the numbers are to be found yet.
        return Action("find numbers")
    if progress.called < epoch:
        return Action("end epoch", epoch)
    if progress.leads and progress.written < epoch:
        # Rank 0 was lost after the others had called theirs, or this rank 0 was behind them.
        return Action("write epoch", epoch)
    return Action("settle")


def _catch_up(progress: Progress, reported: Place) -> Action:
    """The first call that the callbacks lack, up to those at the reported place."""
    if progress.begun >= 0 and reported.begun != progress.begun:
        # It is over there; of its first step this peer may not know.
        return Action("end batch", max(reported.batch, progress.batch, progress.begun + 1) - 1)
    if reported.tested > progress.tested:
        return Action("begin test" if progress.tested == 0 else "end test")
    if reported.called > progress.called:
        return Action("hear of epoch", reported.called)
    if progress.begun_epoch < reported.ended and progress.goes_on_from(reported):
        return Action("begin epoch", reported.ended)
    if reported.begun >= 0 and progress.begun < 0:
        return Action("begin batch", reported.begun)
    if reported.over and not progress.over:
        return Action("end training")
    return Action("take")
