"""What is kept of a run: by its peers, when their membership changes; on disk, when somebody asks for a checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from kungfu.compiler import Plan
from kungfu.errors import UsageError
from kungfu.event_log.events import CheckpointEvent, LoggedEvent, RoundedEvent, RoundedVariable
from kungfu.runtime.api import (
    BarrierResult,
    CheckpointFolder,
    CheckpointSettings,
    Description,
    Manifest,
    Terms,
    VariableGap,
    find,
    has_step,
)
from kungfu.training.checkpoint.restore import load
from kungfu.training.checkpoint.snapshot import CheckpointedState, StateSnapshot
from kungfu.training.description import describe
from kungfu.training.graph.training_state import StateClasses, TrainingState, plant_seeds
from kungfu.training.registered.registry import Registry
from kungfu.training.registered.rescale_hooks import Rescaled, RescaleHooks, change_of
from kungfu.training.registered.sync import PeerGroup, PendingSync, sync_registered
from kungfu.training.tracing.random_streams import ExemptStates, RandomStreams

__all__ = ["CheckpointRequest", "Keeper", "Trained"]


@dataclass(frozen=True)
class Trained:
    """What trains: ``seed`` is the job's, ``peer`` this peer's number in it."""

    model: Any
    optimizers: Sequence[Any]
    state: TrainingState
    seed: int
    peer: int


@dataclass(frozen=True)
class CheckpointRequest:
    """A checkpoint that was asked for, and by whom; it goes to the job's folder where none is named."""

    reason: str
    folder: CheckpointFolder | None = None


class Keeper:
    """Registered values, hooks and checkpoints of one peer."""

    def __init__(
        self, trained: Trained, settings: CheckpointSettings, *, record: Callable[[str, LoggedEvent], None]
    ) -> None:
        self.registry, self.hooks = Registry(), RescaleHooks()
        self.data: Mapping[str, int] = {}  # what the loader walks
        self._trained, self._settings, self._record = trained, settings, record
        self._checkpointed: CheckpointedState | None = None
        self._resumed: Manifest | None = None
        self._wanted: dict[Path, CheckpointRequest] = {}  # by folder
        self._entrusted: dict[
            Path, tuple[CheckpointRequest, int]
        ] = {}  # to rank 0, with the steps done; not seen on disk yet
        self._writing: Future[None] | None = None
        self.inside = False  # the job: a step may carry a request
        self.pending: PendingSync | None = None

    # ---- the first step --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the step is traced: everything is registered, and what was to be resumed is loaded."""
        self._sealed()
        if self._settings.resume and self._resumed is None:
            self.resume(Path(self._settings.resume))
        resumed = self._resumed
        if resumed is not None and self.data and resumed.data and dict(resumed.data) != dict(self.data):
            raise UsageError(
                f"the checkpoint was written while training.batches() walked {_told(resumed.data)}, and now it walks "
                f"{_told(self.data)}: the position in the data means nothing there; give the same data and seed"
            )

    def shared(self) -> list[tf.Variable]:
        """What is equal on all peers, registered variables too."""
        return list(self._sealed().classes.shared.values())

    def random_streams(self) -> RandomStreams:
        """The random numbers of this peer's steps. Of states that are registered as its own peer 0 goes on with those
        of a checkpoint."""
        trained, after = self._trained, 0 if self._resumed is None else self._resumed.step
        goes_on = after > 0 and trained.peer == 0
        planted = () if goes_on else tuple(self.registry.of("own").values())
        own = self._sealed().classes.own.values()
        untouched = [*self.shared(), *(one for one in own if not any(one is other for other in planted))]
        return RandomStreams([trained.seed, trained.peer, after], ExemptStates(untouched, planted))

    def resume(self, folder: Path) -> Path | None:
        """Loads the newest checkpoint of a folder; see ``Training.resume``."""
        checkpointed, trained = self._sealed(), self._trained
        if self._settings.founders == 0:
            return None
        path = find(Path(self._settings.resume) if self._settings.resume else folder)
        if path is None:
            return None
        self.registry.collect()
        own = [(one, tf.identity(one)) for one in checkpointed.classes.own.values()]
        self._resumed = manifest = load(path, checkpointed)
        if trained.peer > 0:  # what is own in a checkpoint is that of the peer that wrote it, and goes on at peer 0
            for one, value in own:
                one.assign(value)
            plant_seeds(trained.state.classes.own, seed=trained.seed, peer=trained.peer, after=manifest.step)
        if manifest.size != self._settings.founders:
            trained.state.rescaled()
        self.registry.restore()
        return path

    def described(self, plan: Plan) -> Description:
        """What this peer runs, once everything is registered."""
        trained = self._trained
        return describe(plan, trained.model, trained.optimizers, self.registry, self.data)

    def batch_in_force(self, batch: int) -> int:
        """The batch of a first step in samples: what a checkpoint goes on with, if training began with ``batch``."""
        resumed = self._resumed
        return resumed.terms.global_batch_size if resumed is not None and resumed.batch == batch else batch

    def continued(self, terms: Terms) -> Terms:
        """The first terms, with what lasts of those of a checkpoint."""
        resumed = self._resumed
        return terms if resumed is None else replace(terms, keep=resumed.terms.keep, ramp=resumed.terms.ramp)

    def _sealed(self) -> CheckpointedState:
        if self._checkpointed is None:
            trained, classes = self._trained, self._trained.state.classes
            more = self.registry.seal(classes)
            together = StateClasses(
                {**classes.shared, **more.shared},
                {**classes.averaged, **more.averaged},
                {**classes.own, **more.own},
            )
            self._checkpointed = CheckpointedState.of(trained.model, trained.optimizers, together)
        return self._checkpointed

    # ---- a new view ----------------------------------------------------------------------------------------------

    def entered(self, passage: BarrierResult, *, step: int) -> None:
        """A barrier is over: what it left to do is due before the next step."""
        self.inside = True
        before, survived = passage.before, passage.survived
        if before is not None and survived is not None and before.view.peers[0].id in survived.lost:
            self._take_over()
        self.pending = _pending_sync(passage, step=step, founds=self._settings.founders > 0)

    def complete_pending(self, peers: PeerGroup, manifest: Manifest, *, met: Callable[[], None] = lambda: None) -> None:
        """Before a step: values meet, hooks hear of a change, and rank 0 draws up the checkpoints that are wanted.

        ``met`` is called when this peer has the values of all, before anything of the program's is.
        """
        pending = self.pending
        if pending is None:
            return
        rounded = sync_registered(self.registry, pending, peers)
        met()
        if rounded:
            self._record("events", _rounded(rounded, rank=peers.rank))
        self.pending = None
        if pending.rescaled is not None:
            self.hooks.call(pending.rescaled)
        if peers.rank == 0:
            self._carry_out(manifest)
        else:
            self._entrusted |= {path: (request, manifest.step) for path, request in self._wanted.items()}
        self._wanted.clear()

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether a checkpoint was asked for that the next barrier has to write."""
        return bool(self._wanted)

    def ask(self, request: CheckpointRequest) -> None:
        """There shall be a checkpoint behind the next barrier; whoever is rank 0 there writes it."""
        self._wanted[self._folder(request).path] = request

    def _take_over(self) -> None:
        """What a rank 0 that was lost had not brought to disk is wanted again: the one after it writes it."""
        for path, (request, step) in self._entrusted.items():
            if path not in self._wanted and not has_step(path, step):
                self._wanted[path] = request
        self._entrusted.clear()

    def _carry_out(self, manifest: Manifest) -> None:
        """Draws up what was asked for, once a folder; it is written behind, one after the other."""
        for request in self._wanted.values():
            started = time.monotonic()
            self.wait()
            snapshot = self._sealed().snapshot()
            held_s = time.monotonic() - started
            pool = ThreadPoolExecutor(1, thread_name_prefix="kungfu-checkpoint")
            self._writing = pool.submit(self._write, request, replace(manifest, data=self.data), snapshot, held_s)
            pool.shutdown(wait=False)

    def wait(self) -> None:
        """Until what was drawn up is on disk."""
        if self._writing is not None:
            self._writing.result()

    def _folder(self, request: CheckpointRequest) -> CheckpointFolder:
        settings = self._settings
        return request.folder or CheckpointFolder(Path(settings.folder).absolute(), settings.keep)

    def _write(self, request: CheckpointRequest, manifest: Manifest, snapshot: StateSnapshot, held_s: float) -> None:
        """A disk that is full, or gone, does not end training: it is told."""
        started, folder = time.monotonic(), self._folder(request)
        where, size_bytes, reason = folder.path, None, ""
        try:
            path = folder.publish(manifest.step, lambda beside: snapshot.write(manifest, beside))
            where, size_bytes = path, sum(file.stat().st_size for file in path.iterdir())
        except (OSError, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0]
            print(f"kungfu: no checkpoint of step {manifest.step} in {folder.path}: {reason}", file=sys.stderr)
        event = CheckpointEvent(
            step=manifest.step, rule=request.reason, path=str(where), size_bytes=size_bytes, error=reason,
            seconds=round(time.monotonic() - started, 6), stop_s=round(held_s, 6),
        )  # fmt: skip
        self._record("events", event)


def _pending_sync(passage: BarrierResult, *, step: int, founds: bool) -> PendingSync:
    before, after, survived, sources = passage.before, passage.after, passage.survived, passage.sources
    if after.rank is None or (before is not None and before.view.version == after.view.version):
        return PendingSync()
    if before is None:
        joined = None if founds else Rescaled("joined", 0, after.view.size, after.rank, step)
        return PendingSync(sources[0], True, None if after.view.begins else sources, joined)
    sizes = before.view.size, after.view.size
    change = change_of(*sizes, recovered=survived is not None)
    return PendingSync(sources[0], survived is not None, sources, Rescaled(change, *sizes, after.rank, step))


def _rounded(gaps: Mapping[str, VariableGap], *, rank: int) -> RoundedEvent:
    """The event of registered values that differed from rank 0's by rounding."""
    widest = tuple(
        RoundedVariable(name=name, difference=gap.difference, largest=gap.largest) for name, gap in gaps.items()
    )
    return RoundedEvent(ranks=(rank,), variables=len(gaps), widest=widest[:3])


def _told(data: Mapping[str, int]) -> str:
    return f"{data.get('samples')} samples by seed {data.get('seed')}"
