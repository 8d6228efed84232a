"""The checkpoints of one peer: requested, taken between two steps, written during training, and resumed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
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
    find_named,
    has_step,
    read_manifest,
)
from kungfu.training.graph.training_state import TrainingState, plant_seeds
from kungfu.training.state.registry import Registry
from kungfu.training.state.snapshot import CheckpointedState, StateSnapshot, load, phase_file, read_values

# Facts about the data that must be equal on all peers, but may differ in a resumed run: no position depends on them.
_MAY_CHANGE = ("weights", "validation")
BEST = "best"  # the name of the checkpoint that ``kungfu-run --keep best`` keeps
_TRAINED = ("model/", "optimizer/")  # the prefixes of the variables of the model and of the optimizers


@dataclass(frozen=True)
class TrainedObjects:
    """The model and the optimizers of a run, the job's ``seed``, the id of this peer, and its ``number`` since the job
    was started last, by which it draws random numbers."""

    model: Any
    optimizers: Sequence[Any]
    state: TrainingState
    seed: int
    peer: int
    number: int


@dataclass(frozen=True)
class CheckpointRequest:
    """A request for a checkpoint, with its reason and the names that the checkpoint receives; without a folder, the
    checkpoint is written to the job's folder."""

    reason: str
    folder: CheckpointFolder | None = None
    names: tuple[str, ...] = ()


class CheckpointManager:
    """The checkpoints of one peer, with all trained and all registered variables.

    Every peer records a request, and rank 0 carries out the request at the next barrier. The other peers remember the
    request, so that if rank 0 is lost, the new rank 0 writes the checkpoints that did not reach the disk.

    Args:
        trained: The model and its optimizers, with the job's seed and this peer's numbers.
        past_phases: The results of the job's finished phases.

    Cost:
        Between two steps, a reference to every variable's buffer, kept until a thread has written the buffer; updates
        in the meantime allocate new buffers.
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
        self._path: Path | None = None  # of the resumed checkpoint
        self._wanted: dict[Path, CheckpointRequest] = {}  # by folder
        # The requests that rank 0 has to carry out, by folder, each with the number of steps done by then; their
        # checkpoints have not been seen on disk yet.
        self._entrusted: dict[Path, tuple[CheckpointRequest, int]] = {}
        self._writing: Future[str] | None = None
        self._past_phases = past_phases
        self._kept: dict[str, Callable[[], bytes]] = {}  # the contents of additional files, by name

    def keep(self, name: str, content: Callable[[], bytes]) -> None:
        """Adds a file to every checkpoint, next to the state; ``content`` is called between two steps, on rank 0."""
        self._kept[name] = content

    @property
    def founds(self) -> bool:
        """True on a peer that starts the job, as opposed to a joiner."""
        return self._settings.founders > 0

    def state(self) -> CheckpointedState:
        """The variables that checkpoints contain; after the first call of this method no more can be registered."""
        if self._state is None:
            trained = self._trained
            more = self._registry.seal(trained.state.classes)
            together = trained.state.carry(more)
            self._state = CheckpointedState.of(trained.model, trained.optimizers, together)
        return self._state

    # ---- resuming --------------------------------------------------------------------------------------------------

    @property
    def resumed_step(self) -> int:
        """The number of steps in the resumed checkpoint; 0 if training started from the beginning."""
        return 0 if self._resumed is None else self._resumed.step

    def begin(self, data: Mapping[str, int]) -> None:
        """Ends registration, and loads the checkpoint of ``kungfu-run --resume``; called before the step is traced.

        Args:
            data: Facts that identify the loader's data, such as samples and seed; empty without a loader.

        Raises:
            UsageError: The checkpoint belongs to training on other data.
        """
        self.state()
        # Skipped if the program has called `resume`, which prefers `kungfu-run --resume` to its argument.
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
        # A joiner of a running job receives the state from the peers in the view.
        if self._settings.founders == 0:
            return None
        path = find(Path(self._settings.resume) if self._settings.resume else folder)
        # No checkpoint exists yet: training starts from the beginning.
        if path is None and not self._settings.resume:
            return None
        if path is None:
            raise UsageError(
                f"there is no checkpoint {self._settings.resume} on this host, which kungfu-run has found on another: "
                "all hosts need the folder"
            )
        self._registry.collect()
        own = [(one, tf.identity(one)) for one in checkpointed.classes.local.values()]
        self._resumed = manifest = load(path, checkpointed)
        # The local variables in a checkpoint belong to the peer that wrote it; only peer 0 continues with these values.
        if trained.number > 0:
            for one, value in own:
                one.assign(value)
            plant_seeds(trained.state.classes, seed=trained.seed, peer=trained.number, after=manifest.step)
        # The job resumes with another number of peers, which counts as a rescale for the folds.
        if manifest.size != self._settings.founders:
            trained.state.rescaled()
        self._registry.restore()
        self._path = path
        if trained.number == 0:
            self._adopt_names(path.parent)
        return path

    def _adopt_names(self, folder: Path) -> None:
        """Gives the named checkpoints of a resumed run to the job's folder: rules may restore or compare with them."""
        try:
            self._folder(CheckpointRequest("")).adopt_names(folder)
        except OSError as error:
            print(f"kungfu: the named checkpoints in {folder} stay behind: {error}", file=sys.stderr)

    def resumed_file(self, name: str) -> bytes | None:
        """The content of an additional file in the resumed checkpoint; ``None`` if there is no such file."""
        file = None if self._path is None else self._path / name
        return file.read_bytes() if file is not None and file.is_file() else None

    def batch_in_force(self, batch: int) -> int:
        """The initial global batch size: the checkpoint's, if its run also began with ``batch``; else ``batch``."""
        resumed = self._resumed
        return resumed.terms.global_batch_size if resumed is not None and resumed.batch == batch else batch

    def continued(self, terms: Terms) -> Terms:
        """Completes a run's first settings with the checkpoint's ramp, limits and averaging interval; if the batch size
        is unchanged, also with the batch size from which rules scale."""
        resumed = self._resumed
        if resumed is None:
            return terms
        lasting = resumed.terms
        most = terms.max_global_batch or lasting.max_global_batch
        terms = replace(terms, keep=lasting.keep, max_global_batch=most, ramp=lasting.ramp)
        if terms.average_every:  # otherwise the run averages gradients
            terms = replace(terms, average_every=lasting.average_every or terms.average_every)
        if terms.global_batch_size != lasting.global_batch_size:
            # The program starts with another batch size than before: changes that rules made to the old size are void.
            return terms
        terms = replace(terms, base_batch=lasting.base_batch, base_size=lasting.base_size)
        return replace(terms, policy_share=lasting.policy_share)

    # ---- restoring -------------------------------------------------------------------------------------------------

    def trained_variables(self) -> dict[str, tf.Variable]:
        """The variables that a rule restores, by name: weights, layers' statistics, and optimizers' slots.

        The optimizers' counts of steps are not among them, since the job's steps go on, nor are their learning rates,
        which are settings like the batch.
        """
        optimizers = self._trained.optimizers
        own = [*optimizers, *(one.inner_optimizer for one in optimizers if hasattr(one, "inner_optimizer"))]
        settings = [setting for one in own for setting in (one.iterations, one.learning_rate)]
        kept = {id(one.value) for one in settings if isinstance(one, keras.Variable)}
        classes = self.state().classes
        found = {**classes.shared, **classes.averaged, **classes.of_rank_0}
        return {name: one for name, one in found.items() if name.startswith(_TRAINED) and id(one) not in kept}

    def read_named(self, name: str) -> tuple[Path, Manifest, list[Any]]:
        """Reads the values of `trained_variables` from a named checkpoint of the job's folder; changes no variable.

        Raises ``UsageError`` if there is no checkpoint of this name, it is damaged, or it is of another model."""
        self.wait()  # the checkpoint may be the one that is being written
        path = find_named(self._folder(CheckpointRequest("")).path, name)
        manifest, values = read_values(path, self.state(), self.trained_variables(), within=_TRAINED)
        return path, manifest, values

    # ---- writing ---------------------------------------------------------------------------------------------------

    @property
    def best_signal(self) -> str:
        """The signal whose lowest value makes a checkpoint the best one; empty without ``kungfu-run --keep best``."""
        return self._settings.best_signal

    @property
    def is_wanted(self) -> bool:
        """True if a checkpoint was requested and the next barrier must write it."""
        return bool(self._wanted)

    def request(self, request: CheckpointRequest) -> None:
        """Requests a checkpoint at the next barrier; rank 0 of that barrier writes it, under all requested names.

        Raises ``UsageError`` if the name is the one that ``kungfu-run --keep best`` gives to checkpoints."""
        if BEST in request.names and self.best_signal:
            raise UsageError(
                f"{request.reason} writes a checkpoint named {BEST!r}, and kungfu-run --keep best gives this name to "
                f"the checkpoint with the lowest {self.best_signal}: give another name, or leave out --keep best"
            )
        path = self._folder(request).path
        names = (*(self._wanted[path].names if path in self._wanted else ()), *request.names)
        self._wanted[path] = replace(request, names=tuple(dict.fromkeys(names)))

    def take_over(self, *, step: int, leads: bool) -> None:
        """Requests again, after the loss of rank 0, the checkpoints that rank 0 had not written to disk.

        A named checkpoint is of a certain step, often the best: the state of a later step does not get the name.

        Args:
            step: The number of steps done by now.
            leads: True if this peer is rank 0 now, which reports a named checkpoint that is lost.
        """
        for path, (request, requested_at) in self._entrusted.items():
            # A newer request for the folder replaces this one; a checkpoint on disk is done.
            if path in self._wanted or has_step(path, requested_at):
                continue
            if request.names and requested_at != step:
                if leads:
                    reason = f"rank 0 was lost before {' and '.join(request.names)} was on disk"
                    self._report(request, path, step=requested_at, error=reason)
                continue
            self._wanted[path] = request
        self._entrusted.clear()

    def start_wanted(self, manifest: Manifest, *, rank: int) -> None:
        """Starts the requested checkpoints on rank 0, between two steps; the other peers remember the requests."""
        # On the other peers a newer request for a folder replaces an older one.
        if rank == 0:
            for request in self._wanted.values():
                self._start_writing(request, manifest)
        else:
            self._entrusted |= {path: (request, manifest.step) for path, request in self._wanted.items()}
        self._wanted.clear()

    def _start_writing(self, request: CheckpointRequest, manifest: Manifest) -> None:
        """Takes a snapshot of the current state; a thread writes it, one checkpoint at a time."""
        started = time.monotonic()
        self.wait()  # for the previous checkpoint, so that memory holds at most one snapshot
        state = self.state()
        snapshot = StateSnapshot(state, state.tree.values(), self._files())
        held_s = time.monotonic() - started
        pool = ThreadPoolExecutor(1, thread_name_prefix="kungfu-checkpoint")
        self._writing = pool.submit(self._write, request, manifest, snapshot, held_s)
        pool.shutdown(wait=False)

    def _files(self) -> dict[str, Callable[[], bytes]]:
        """The additional files: values of the program, and the results of previous phases, which no longer change."""
        kept, phases = {name: content() for name, content in self._kept.items()}, self._past_phases
        return {
            **{name: partial(bytes, content) for name, content in kept.items()},
            **{phase_file(number): partial(phases.packed, number) for number in phases.numbers()},
        }

    def wait(self) -> str:
        """Waits until the last checkpoint is on disk; returns its path, or an empty text if none was written."""
        return "" if self._writing is None else self._writing.result()

    def _folder(self, request: CheckpointRequest) -> CheckpointFolder:
        settings = self._settings
        folder = request.folder or CheckpointFolder(Path(settings.folder).absolute(), settings.keep)
        return replace(folder, job=settings.job)

    def _write(self, request: CheckpointRequest, manifest: Manifest, snapshot: StateSnapshot, held_s: float) -> str:
        """Writes a checkpoint. A full or missing disk, or a folder of another job, is reported; training continues."""
        started, folder = time.monotonic(), self._folder(request)
        where, size_bytes, reason = folder.path, None, ""
        if request.folder is None and self._is_best(manifest, folder.path):
            request = replace(request, names=(*request.names, BEST))
        try:
            path = folder.publish(manifest.step, lambda beside: snapshot.write(manifest, beside), names=request.names)
            where, size_bytes = path, sum(file.stat().st_size for file in path.iterdir())
        except (OSError, FolderInUse, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0]
        self._report(
            request, where, step=manifest.step, error=reason, size_bytes=size_bytes,
            seconds=round(time.monotonic() - started, 6), stop_s=round(held_s, 6),
        )  # fmt: skip
        return "" if reason else str(where)

    def _is_best(self, manifest: Manifest, folder: Path) -> bool:
        """True if the value of the signal of ``--keep best`` is lower than that of the best checkpoint so far."""
        value = manifest.signals.get(self.best_signal, math.nan)
        try:
            lowest = read_manifest(find_named(folder, BEST)).signals.get(self.best_signal, math.inf)
        except UsageError:  # there is none yet, or it is damaged
            lowest = math.inf
        return math.isfinite(value) and value < lowest

    def _report(self, request: CheckpointRequest, path: Path, *, step: int, error: str = "", **more: Any) -> None:
        """Records a checkpoint that was written, or that could not be written, which is also printed."""
        if error:
            print(f"kungfu: no checkpoint of step {step} in {path}: {error}", file=sys.stderr)
        given = {"seconds": 0.0, "stop_s": 0.0, **more}
        event = CheckpointEvent(
            step=step, rule=request.reason, path=str(path), error=error, names=request.names, **given
        )
        self._record("events", event)


def _shown(data: Mapping[str, int], others: Sequence[str]) -> str:
    """Describes data by the number of samples, the seed, and those further facts that ``others`` names."""
    more = "".join(f", {name.replace('_', ' ')} {data.get(name)}" for name in others if name not in ("samples", "seed"))
    return f"{data.get('samples')} samples by seed {data.get('seed')}{more}"
