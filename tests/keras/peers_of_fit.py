"""Peers that do what the table of a ``fit`` says, without Keras and TensorFlow: each is a generator of its messages.

A callback is a line that is told, and changes the state; what callbacks keep is the list of these lines. Where a
message is cut, a peer of the view ends over it, and only some of the others hear it; the others notice the loss, as do
the first ones at their next message. Who holds the state that counts is found by the rules of the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kungfu.keras.next_action import Action, FitState, Progress, decide
from kungfu.runtime.core.cluster.events import LossReport
from kungfu.runtime.core.cluster.recovery import _most_advanced
from kungfu.training.graph.step_report import StepPosition

# The name of a message, and what the peer brings to it; it is given what all of the view bring, by rank.
Messages = Generator[tuple[str, Any], list[Any], None]


class LostStateError(Exception):
    """A second peer was lost before others had the state of the first one."""


class LostError(Exception):
    """Another peer has ended."""


@dataclass(frozen=True)
class Cut:
    """Peer ``dies`` ends over a message, of which only these peers hear: before any of them, where nobody does."""

    message: int
    dies: int = 0
    heard_by: tuple[int, ...] = ()


@dataclass
class Peer:
    """One of them; ``file`` is the log that the callbacks of rank 0 write, of which ``rows`` are known to be kept."""

    id: int
    progress: Progress
    file: list[int]
    steps: int  # of an epoch
    rank: int = 0
    place: tuple[int, int, int] = (0, 0, 0)  # steps, epoch, and steps within it
    version: int = 1
    stage: int = 1
    holds: bool = True
    source: int = 0
    state: int = 0
    rows: int = 0
    told: list[str] = field(default_factory=list)

    def position(self) -> StepPosition:
        return StepPosition(*self.place, 0, self.version, 0, self.rank, 1)

    def run(self) -> Messages:
        """Until the end of training."""
        while (action := decide(self.progress, self.position())).what != "finish":
            try:
                yield from getattr(self, f"_{action.what.replace(' ', '_')}", lambda: self._call(action))()
            except LostError:
                yield "recover", None
        try:
            yield "finish", None
        except LostError:
            yield "recover", None
            yield from self.run()

    def _call(self, action: Action) -> Sequence[Any]:
        """Tells the callbacks, and those that write where they are on this peer."""
        what, writes = action.what.replace("hear of", "end"), action.what == "write epoch"
        if not writes:
            assert len(self.told) < 200, f"{action} again and again"
            self.told.append(f"{what} {action.number}")
            self.state = hash((self.state, self.told[-1]))
        if writes or (self.progress.leads and action.what == "end epoch"):
            self.file.append(action.number)
        self.progress = self.progress.after(action)
        return ()

    def _meet(self, *messages: tuple[str, Callable[[], Any], Callable[[list[Any]], Any]]) -> Messages:
        """A meeting of these messages: each with what the peer brings, and with what it does when it has heard it."""
        self.stage += 1
        for name, bring, hear in messages:
            hear((yield name, bring()))
        self.stage += 1

    def _noted(self, what: Any) -> None:
        self.progress = self.progress.after(Action(what))

    def _take_state(self, brought: list[Any]) -> None:
        self.state = brought[0]

    # ---- a new view ------------------------------------------------------------------------------------------------

    def _enter_view(self) -> Messages:
        reported = FitState()

        def hear(brought: list[Any]) -> None:
            nonlocal reported
            reported = brought[self.source]
            self.progress = self.progress.updated_by(reported)
            while (action := decide(self.progress, self.position(), reported)).what != "adopt state":
                self._call(action)

        def keep(brought: list[Any]) -> None:
            self.told = list(brought[self.source][0])
            led = any(leads for *_, leads in brought)
            _, self.rows, written, _ = brought[0 if led else self.source]
            self.progress = replace(self.progress, written=written)

        def conclude(brought: list[Any]) -> None:
            self.state, self.holds = brought[self.source], True
            if self.rank == 0 and not self.progress.leads:
                del self.file[self.rows :]
            leads = self.progress.leads or self.rank == 0
            self.progress = self.progress.in_view(reported, version=self.version, leads=leads)

        return self._meet(
            ("place", lambda: FitState(**self.progress.fit_state), hear),
            ("kept", lambda: (tuple(self.told), self._kept_rows(), self.progress.written, self.progress.leads), keep),
            ("variables", lambda: self.state, conclude),
        )

    def _kept_rows(self) -> int:
        self.rows = len(self.file) if self.progress.leads else self.rows
        return self.rows

    # ---- a step ----------------------------------------------------------------------------------------------------

    def _step(self) -> Messages:
        yield "gradients", None
        step, epoch, offset = (one + 1 for one in self.place)
        self.place = (step, epoch, 0) if offset == self.steps else (step, epoch - 1, offset)
        self.state, self.stage = hash((self.state, step)), 0
        self.progress = self.progress.stepped(stops=False)
        yield "barrier", None
        self.stage = 1

    # ---- the end of an epoch ---------------------------------------------------------------------------------------

    def _average(self) -> Messages:
        return self._meet(("statistics", lambda: None, lambda _: self._noted("average")))

    def _find_numbers(self) -> Messages:
        if self.progress.tested < 2:
            yield from self._meet(("batches", lambda: None, lambda _: self._begin_test()))
            yield from self._meet(("parts", lambda: None, lambda _: self._call(Action("end test"))))
        yield from self._meet(("numbers", lambda: None, self._hear_numbers))

    def _begin_test(self) -> None:
        if not self.progress.tested:
            self._call(Action("begin test"))

    def _hear_numbers(self, _: list[Any]) -> None:
        self.progress = replace(self.progress, logs={"loss": 0.5})

    def _conclude_epoch(self) -> Messages:
        def keep(brought: list[Any]) -> None:
            self.rows, written = brought[0]
            self.progress = replace(self.progress, written=written)

        def conclude(brought: list[Any]) -> None:
            self._take_state(brought)
            self.progress = self.progress.with_epoch_concluded(stops=False)

        return self._meet(
            ("word", lambda: None, lambda _: None),
            ("kept by those that write", lambda: (self._kept_rows(), self.progress.written), keep),
            ("variables", lambda: self.state, conclude),
        )

    def _share(self, action: str = "share") -> Messages:
        def hear(brought: list[Any]) -> None:
            self._take_state(brought)
            self._noted(action)

        return self._meet(("variables", lambda: self.state, hear))

    def _share_last(self) -> Messages:
        return self._share("share last")


def fit_together(
    size: int, cuts: Sequence[Cut] = (), *, epochs: int = 2, steps: int = 2, execution: int = 1, joins_at: int = -1
) -> tuple[Mapping[int, Peer], list[str]]:
    """The peers that have come to the end, and the messages that were sent; one joins at the barrier of this number.

    Raises:
        LostStateError: Nobody that is left holds the state.
        AssertionError: Peers of a view wait for each other in different messages.
    """
    file, cut_at, sent = list[int](), {cut.message: cut for cut in cuts}, list[str]()
    progress = Progress(epochs=epochs, execution=execution)
    view = {one: Peer(one, progress, file, steps, rank=one) for one in range(size)}
    runs = {one: peer.run() for one, peer in view.items()}
    waiting, ended = {one: next(run) for one, run in runs.items()}, dict[int, Peer]()
    while view:
        names, cut = {name for name, _ in waiting.values()}, cut_at.get(len(sent))
        assert len(names) == 1, f"stuck at message {len(sent)}: {waiting}"
        admits = len(sent) == joins_at
        recovers, brought = names == {"recover"}, [waiting[one][1] for one in view]
        is_cut = not recovers and cut is not None and cut.dies in view
        if recovers:
            _form_view(view)
        else:
            sent += names
        if is_cut:
            del view[cut.dies], waiting[cut.dies]
        elif admits:
            _admit(view, joiner := Peer(size, progress, file, steps, rank=size, holds=False))
            runs[size] = joiner.run()
        for one in [each for each in waiting if not is_cut or each in cut.heard_by]:
            try:
                waiting[one] = runs[one].send(brought)
            except StopIteration:
                ended[one] = view.pop(one)
                del waiting[one]
        if admits and not is_cut:
            waiting[size] = next(runs[size])
        for one in view if is_cut else ():
            waiting[one] = runs[one].throw(LostError)
    return ended, sent


def _admit(view: dict[int, Peer], joiner: Peer) -> None:
    """The barrier after a step has let another peer in, with the state of rank 0."""
    leads = next(iter(view.values()))
    joiner.state, joiner.place, joiner.version = leads.state, leads.place, leads.version
    joiner.progress = replace(joiner.progress, ended=leads.progress.ended)
    view[joiner.id] = joiner
    for peer in view.values():
        peer.version, peer.source = peer.version + 1, 0


def _form_view(view: Mapping[int, Peer]) -> None:
    """Of those who are left, with the state of those that are furthest on."""
    reports = {
        one: LossReport(peer.version, peer.place[0], peer.holds, "lost", stage=peer.stage, digest=peer.state)
        for one, peer in view.items()
    }
    if not any(report.holds for report in reports.values()):
        raise LostStateError
    holders = _most_advanced(reports, tuple(view))
    source = view[holders[0]]
    for rank, (one, peer) in enumerate(view.items()):
        if one not in holders:
            peer.holds, peer.state, peer.place = False, source.state, source.place
        peer.progress = replace(peer.progress, ended=source.progress.ended)
        peer.rank, peer.version, peer.stage, peer.source = rank, peer.version + 2, 1, [*view].index(holders[0])
