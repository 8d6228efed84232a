"""Checkpoints of one peer: requested, begun between two steps, written while training continues, and resumed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.event_log.events import CheckpointEvent, LoggedEvent
from kungfu.runtime.api import (
    CheckpointFolder,
    CheckpointSettings,
    FolderInUse,
    Manifest,
    PastPhases,
    Terms,
    find,
    has_step,
)
from kungfu.training.graph.training_state import TrainingState, plant_seeds
from kungfu.training.state.registry import Registry
from kungfu.training.state.snapshot import CheckpointedState, StateSnapshot, load, phase_file

# Of the data: peers have to hold the same, and a run that is resumed may be given others, as no position is in them.
_MAY_CHANGE = ("weights", "validation")


@dataclass(frozen=True)
class TrainedObjects:
    """The trained objects: ``seed`` is the job's, ``peer`` this peer's number in it."""

    model: Any
    optimizers: Sequence[Any]
    state: TrainingState
    seed: int
    peer: int


@dataclass(frozen=True)
class CheckpointRequest:
    """A checkpoint that was requested, and by whom; it goes to the job's folder where none is named."""

    reason: str
    folder: CheckpointFolder | None = None


class CheckpointManager:
    """The checkpoints of one peer, of all that is trained and all that is registered.

    A request is remembered by every peer and carried out by rank 0 of the barrier after it. The others remember what
    they entrusted to rank 0, so that the rank 0 after a lost one writes what did not reach the disk.

    Args:
        trained: The trained objects.
        registry: The values that the program has registered.
        settings: The folder of checkpoints, how many stay, and which one to resume.
        record: Records an event in a stream.
        past_phases: What the phases of the job that are over came to.

    Cost:
        Between two steps a look at every variable, whose memory is held until it is written: an update meanwhile goes
        to new memory. A thread writes.
    """

    def __init__(
        self,
        trained: TrainedObjects,
        registry: Registry,
        settings: CheckpointSettings,
        *,
        record: Callable[[str, LoggedEvent], None],
        past_phases: PastPhases,
    ) -> None:
        self._trained, self._registry, self._settings, self._record = trained, registry, settings, record
        self._state: CheckpointedState | None = None
        self._resumed: Manifest | None = None
        self._path: Path | None = None  # of the resumed one
        self._wanted: dict[Path, CheckpointRequest] = {}  # by folder
        # To rank 0, by folder, with the steps done then; not seen on disk yet.
        self._entrusted: dict[Path, tuple[CheckpointRequest, int]] = {}
        self._writing: Future[None] | None = None
        self._past_phases = past_phases
        self._kept: dict[str, Callable[[], bytes]] = {}  # the contents of files beside the state, by their names

    def keep(self, name: str, content: Callable[[], bytes]) -> None:
        """A file of every checkpoint, beside the state; ``content`` is called between two steps, on rank 0."""
        self._kept[name] = content

    @property
    def founds(self) -> bool:
        """True on a peer that begins the job."""
        return self._settings.founders > 0

    def state(self) -> CheckpointedState:
        """All that a checkpoint holds; from the first call on nothing more can be registered."""
        if self._state is None:
            trained = self._trained
            more = self._registry.seal(trained.state.classes)
            together = trained.state.carry(more)
            self._state = CheckpointedState.of(trained.model, trained.optimizers, together)
        return self._state

    # ---- resuming --------------------------------------------------------------------------------------------------

    @property
    def resumed_step(self) -> int:
        """The steps that were done when the resumed checkpoint was written; 0 if training began again."""
        return 0 if self._resumed is None else self._resumed.step

    def begin(self, data: Mapping[str, int]) -> None:
        """Before the step is traced: everything is registered, and what ``kungfu-run --resume`` names is loaded.

        Args:
            data: The data of the loader, by its number of samples and its seed; empty without loader.

        Raises:
            UsageError: The checkpoint was written while other data was walked.
        """
        self.state()
        # Not where the program has called `resume`, which loads what `kungfu-run` names before its own.
        if self._settings.resume and self._resumed is None:
            self.resume(Path(self._settings.resume))
        resumed = self._resumed
        if resumed is None or not data:
            return
        bound = [name for name in resumed.data if name not in _MAY_CHANGE]
        others = [name for name in bound if data.get(name) != resumed.data[name]]
        if others:
            raise UsageError(
                f"the checkpoint was written while training walked {_shown(resumed.data, others)}, and now it walks "
                f"{_shown(data, others)}: the position in the data is not valid for them; give the same data, in the "
                "same order, and the same seed"
            )

    def resume(self, folder: Path) -> Path | None:
        """Loads the newest checkpoint of a folder; see ``Training.resume``."""
        checkpointed, trained = self.state(), self._trained
        # A joiner of a running job: the state comes from the peers in the view.
        if self._settings.founders == 0:
            return None
        path = find(Path(self._settings.resume) if self._settings.resume else folder)
        # Nothing was written yet: training starts anew.
        if path is None and not self._settings.resume:
            return None
        if path is None:
            raise UsageError(
                f"there is no checkpoint {self._settings.resume} on this host, which kungfu-run has found on another: "
                "all hosts need the folder"
            )
        self._registry.collect()
        own = [(one, tf.identity(one)) for one in checkpointed.classes.own.values()]
        self._resumed = manifest = load(path, checkpointed)
        # A checkpoint holds what the peer that wrote it calls its own; that continues at peer 0 only.
        if trained.peer > 0:
            for one, value in own:
                one.assign(value)
            plant_seeds(trained.state.classes, seed=trained.seed, peer=trained.peer, after=manifest.step)
        # The job continues with another number of peers, which is a rescale to the folds.
        if manifest.size != self._settings.founders:
            trained.state.rescaled()
        self._registry.restore()
        self._path = path
        return path

    def resumed_file(self, name: str) -> bytes | None:
        """A file of the resumed checkpoint, beside its state; ``None`` if there is none."""
        file = None if self._path is None else self._path / name
        return file.read_bytes() if file is not None and file.is_file() else None

    def batch_in_force(self, batch: int) -> int:
        """The batch of a first step in samples: what a checkpoint continues with, if training began with ``batch``."""
        resumed = self._resumed
        return resumed.terms.global_batch_size if resumed is not None and resumed.batch == batch else batch

    def continued(self, terms: Terms) -> Terms:
        """The first terms, with what lasts of those of a checkpoint."""
        resumed = self._resumed
        if resumed is None:
            return terms
        lasting = resumed.terms
        terms = replace(terms, keep=lasting.keep, max_global_batch=lasting.max_global_batch, ramp=lasting.ramp)
        if terms.global_batch_size != lasting.global_batch_size:
            # The program begins with another batch than before: what rules had made of the old one is over.
            return terms
        terms = replace(terms, base_batch=lasting.base_batch, base_size=lasting.base_size)
        return replace(terms, policy_share=lasting.policy_share)

    # ---- writing ---------------------------------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """True if a checkpoint was requested that the next barrier has to write."""
        return bool(self._wanted)

    def request(self, request: CheckpointRequest) -> None:
        """There should be a checkpoint after the next barrier; whoever is rank 0 there writes it."""
        self._wanted[self._folder(request).path] = request

    def take_over(self) -> None:
        """Rank 0 was lost: what it had not brought to disk is wanted again, of the one after it."""
        for path, (request, step) in self._entrusted.items():
            # A newer request for the folder takes its place; one that is on disk is done.
            if path not in self._wanted and not has_step(path, step):
                self._wanted[path] = request
        self._entrusted.clear()

    def start_wanted(self, manifest: Manifest, *, rank: int) -> None:
        """Between two steps: rank 0 begins the requested checkpoints; other peers remember them."""
        # For the others a newer request of a folder takes the place of an older one.
        if rank == 0:
            for request in self._wanted.values():
                self._start_writing(request, manifest)
        else:
            self._entrusted |= {path: (request, manifest.step) for path, request in self._wanted.items()}
        self._wanted.clear()

    def _start_writing(self, request: CheckpointRequest, manifest: Manifest) -> None:
        """Keeps the state of this moment; a thread writes it, one checkpoint after the other."""
        started = time.monotonic()
        self.wait()  # for the one before: memory holds no more than one snapshot
        snapshot = self.state().snapshot(self._files())
        held_s = time.monotonic() - started
        pool = ThreadPoolExecutor(1, thread_name_prefix="kungfu-checkpoint")
        self._writing = pool.submit(self._write, request, manifest, snapshot, held_s)
        pool.shutdown(wait=False)

    def _files(self) -> dict[str, Callable[[], bytes]]:
        """The files beside the state: the values of the program, and the previous phases, which no longer change."""
        kept, phases = {name: content() for name, content in self._kept.items()}, self._past_phases
        return {
            **{name: partial(bytes, content) for name, content in kept.items()},
            **{phase_file(number): partial(phases.packed, number) for number in phases.numbers()},
        }

    def wait(self) -> None:
        """Waits until the newest checkpoint is on disk."""
        if self._writing is not None:
            self._writing.result()

    def _folder(self, request: CheckpointRequest) -> CheckpointFolder:
        settings = self._settings
        folder = request.folder or CheckpointFolder(Path(settings.folder).absolute(), settings.keep)
        return replace(folder, job=settings.job)

    def _write(self, request: CheckpointRequest, manifest: Manifest, snapshot: StateSnapshot, held_s: float) -> None:
        """A disk that is full, or gone, or another job in the folder does not end training: it is reported."""
        started, folder = time.monotonic(), self._folder(request)
        where, size_bytes, reason = folder.path, None, ""
        try:
            path = folder.publish(manifest.step, lambda beside: snapshot.write(manifest, beside))
            where, size_bytes = path, sum(file.stat().st_size for file in path.iterdir())
        except (OSError, FolderInUse, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0]
            print(f"kungfu: no checkpoint of step {manifest.step} in {folder.path}: {reason}", file=sys.stderr)
        event = CheckpointEvent(
            step=manifest.step, rule=request.reason, path=str(where), size_bytes=size_bytes, error=reason,
            seconds=round(time.monotonic() - started, 6), stop_s=round(held_s, 6),
        )  # fmt: skip
        self._record("events", event)


def _shown(data: Mapping[str, int], others: Sequence[str]) -> str:
    """The data in words: their number and seed, and what else is another than before."""
    more = "".join(f", {name.replace('_', ' ')} {data.get(name)}" for name in others if name not in ("samples", "seed"))
    return f"{data.get('samples')} samples by seed {data.get('seed')}{more}"
