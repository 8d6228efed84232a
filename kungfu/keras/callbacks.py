"""Keras' callbacks on the peers of a job: their placement, and the sharing of their state.

Writers, callbacks that only write (a progress bar, checkpoints, a log), run on rank 0. All other callbacks run on every
peer, with equal logs. Plain attributes of callbacks (numbers, texts, arrays, and lists and dictionaries of these) are
set to rank 0's values: joiners receive these values, and a new coordinator continues from its predecessor's values.
"""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.metrics import metrics_of
from kungfu.keras.plain_values import agreed, pack, plain_attributes, put_attributes, unpack
from kungfu.runtime.api import read_settings
from kungfu.training.state.registered_sync import PeerGroup

Group = Literal["all", "writers", "others"]

_WRITERS = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.BackupAndRestore,
)
# Attributes that Keras sets in every callback, and those of a CSVLogger's file, which differ between coordinators.
_NOT_KEPT = frozenset({"params", "_params", "model", "_model", "append", "append_header"})
# Values that training does not change, or that a joiner receives anyway.
_HARMLESS = (os.PathLike, ModuleType, tf.data.Dataset, keras.utils.PyDataset, keras.Layer, keras.optimizers.Optimizer)


class JobCallbacks:
    """The callbacks of one ``fit`` on one peer.

    Args:
        verbose: 0 for silence, 1 for a progress bar, 2 for a line per epoch.
        params: ``epochs`` and ``steps``, in Keras' form.

    Raises:
        UsageError: A callback cannot run in a job.
    """

    def __init__(self, callbacks: Any, model: Any, *, verbose: int, params: dict[str, int]) -> None:
        given = keras.tree.flatten(callbacks)
        _refuse(given)
        self._model = model
        # The callbacks that run on this peer, in the form for Keras' ``evaluate``.
        self.running = keras.callbacks.CallbackList(
            given, add_history=True, add_progbar=verbose != 0, verbose=verbose, **params
        )
        self._all = list(self.running.callbacks)
        # Until this peer leads, its writers do not run and have no model: with a model, some would write at once.
        self._run(without_writers(self._all))
        self.running.set_model(model)
        self.leads = self._began = False
        self.epoch = -1  # the last epoch that was announced to callbacks
        self._epoch_logs: dict[str, Any] = {}  # logs of an epoch's end, with the additions of callbacks

    @property
    def restores(self) -> bool:
        """True if a callback restores a backup when training begins."""
        return any(isinstance(one, keras.callbacks.BackupAndRestore) for one in self._all)

    def append_logs(self) -> None:
        """Makes log files continue after their present entries, for a fit that is resumed from a checkpoint."""
        for one in self._loggers():
            one.append = True

    def begin(self) -> None:
        """Calls ``on_train_begin`` of the callbacks that run on every peer; only the first call has an effect."""
        if not self._began:
            self._began = True
            self.running.on_train_begin()

    def lead(self, *, takes_over: bool) -> None:
        """Starts the callbacks that only write, on a new rank 0; if ``takes_over``, with its predecessor's values."""
        if self.leads:
            return
        self.leads = True
        self._run(list(self._all))
        if not takes_over:
            _name_others(self._all, self._model)
        for one in self._writers():
            before = _kept(one)
            one.set_model(self._model)
            if takes_over and isinstance(one, keras.callbacks.BackupAndRestore):
                put_attributes(one, before)  # ``on_train_begin`` would restore the state of an epoch ago
                continue
            if takes_over and isinstance(one, keras.callbacks.CSVLogger):
                _cut(one)
                one.append = True  # after the predecessor's lines
            one.on_train_begin()
            if takes_over:  # continues from the predecessor, in the middle of an epoch
                put_attributes(one, before)
                one.on_epoch_begin(self.epoch)

    def epoch_begins(self, epoch: int) -> None:
        """Calls ``on_epoch_begin`` of all callbacks that run on this peer."""
        self.epoch = epoch
        self.running.on_epoch_begin(epoch)
        self._run(self.running.callbacks)  # again, since a callback may have replaced one of its hooks

    def epoch_ends(self, epoch: int, logs: dict[str, Any]) -> None:
        """Calls ``on_epoch_end`` of all callbacks on this peer; each may add to the logs for the callbacks after it."""
        self._epoch_logs = dict(logs)
        for one in self.running.callbacks:
            one.on_epoch_end(epoch, self._epoch_logs)

    def epoch_ended(self, epoch: int, logs: dict[str, Any]) -> None:
        """Calls ``on_epoch_end`` for an epoch that ended on another peer, but not of writers, which run on rank 0."""
        self._epoch_logs = dict(logs)
        for one in without_writers(self._all):
            one.on_epoch_end(epoch, self._epoch_logs)

    def write_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """Calls ``on_epoch_end`` of the writers (callbacks that only write), once all other callbacks were called."""
        for one in self._writers():
            one.on_epoch_end(epoch, self._epoch_logs or dict(logs))

    def batch_begins(self, batch: int) -> None:
        for one in self._hear_begin:
            one.on_train_batch_begin(batch, logs={})

    def batch_ends(self, batch: int, logs: Callable[[], dict[str, Any]]) -> None:
        """Calls the callbacks with a hook for the end of a batch; ``logs`` is called only if such callbacks exist."""
        if not self._hear_end:
            return
        given = logs()
        for one in self._hear_end:
            one.on_train_batch_end(batch, logs=given)

    def _run(self, callbacks: list[Any]) -> None:
        """Replaces the callbacks that run on this peer."""
        self.running.callbacks = callbacks
        self._hear_begin = _hearing(callbacks, "on_train_batch_begin", "on_batch_begin")
        self._hear_end = _hearing(callbacks, "on_train_batch_end", "on_batch_end")

    def end_writers(self, logs: dict[str, Any]) -> None:
        """Calls ``on_train_end`` of the writers (callbacks that only write), once all other callbacks were called."""
        for one in self._writers():
            one.on_train_end(logs)

    # ---- kept attributes -------------------------------------------------------------------------------------------

    def agree(self, peers: PeerGroup, group: Group, *, rank: int = 0, written: int) -> int:
        """Sets the attributes of callbacks to the values on one rank.

        Args:
            group: The callbacks: "all", the "writers" (which run on rank 0 alone), or the "others".
            rank: The rank whose values the other peers adopt.
            written: The last epoch at whose end the writers were called, possibly by an earlier rank 0.

        Returns:
            The value of ``written`` on rank ``rank``; for the group "others", ``written`` as given.

        Raises:
            UsageError: The callbacks on rank ``rank`` are of other types than on this peer.

        Cost:
            One message, some bytes per callback; a callback's attributes are sent only if they differ on some peer.
        """
        types, gives = self._types(), peers.rank == rank
        packed = [pack(_kept(one)) for one in self._group(group)]
        sums = [[len(one), zlib.crc32(one)] for one in packed]
        theirs = agreed(peers, {"types": types, "sums": sums, "written": written}, rank=rank)
        self._refuse_others(theirs["types"], where=f"on rank {rank}")
        others = peers.any_of([mine != one for mine, one in zip(sums, theirs["sums"], strict=True)])
        lengths = [length for (length, _), is_other in zip(theirs["sums"], others, strict=True) if is_other]
        sent = b"".join(one for one, is_other in zip(packed, others, strict=True) if is_other)
        found = io.BytesIO(peers.from_rank(rank, sent if gives else b"") if any(others) else b"")
        if not gives:
            differing = (one for one, is_other in zip(self._group(group), others, strict=True) if is_other)
            for one, length in zip(differing, lengths, strict=True):
                put_attributes(one, unpack(found.read(length)))
        return written if group == "others" else int(theirs["written"])

    def kept(self) -> dict[str, Any]:
        """The plain attributes of all callbacks, and the callbacks' types; the types must be equal on all peers."""
        return {"types": self._types(), "all": [_kept(one) for one in self._all]}

    def adopt(self, kept: dict[str, Any], *, where: str) -> None:
        """Sets the callbacks' attributes to ``kept``; ``UsageError``, saying ``where``, if it is of other callbacks."""
        self._refuse_others(kept["types"], where=where)
        for one, attributes in zip(self._all, kept["all"], strict=True):
            put_attributes(one, attributes)

    def resume(self, kept: dict[str, Any]) -> None:
        """Sets the callbacks' attributes from a checkpoint; removes later log entries, which are written again."""
        self.adopt(kept, where="in the checkpoint")
        for one in self._loggers() if self.leads else ():
            _cut(one)

    def _group(self, name: Group) -> list[Any]:
        if name == "all":
            return self._all
        return self._writers() if name == "writers" else without_writers(self._all)

    def _refuse_others(self, types: list[str], *, where: str) -> None:
        if types != self._types():
            raise UsageError(
                f"model.fit() has the callbacks {self._types()} on this peer, and {types} {where}: give the same "
                "list on all peers; those that only write run on rank 0 by themselves"
            )

    def _writers(self) -> list[Any]:
        return [one for one in self._all if isinstance(one, _WRITERS)]

    def _loggers(self) -> list[Any]:
        return [one for one in self._all if isinstance(one, keras.callbacks.CSVLogger)]

    def _types(self) -> list[str]:
        return [type(one).__name__ for one in self._all]


def verbosity(given: Any) -> int:
    """Keras' number for ``verbose``; in a job "auto" means a line per epoch."""
    return 2 if given == "auto" else int(given)


def refuse_saves_within_epochs(callbacks: Any) -> None:
    """Raises ``UsageError`` for a callback that saves a model every few batches, between two averages of models."""
    for one in keras.tree.flatten(callbacks):
        if isinstance(often := getattr(one, "save_freq", None), int) and often:
            raise UsageError(
                f"{type(one).__name__}(save_freq={often}) with sync=kf.control.average_models(...): within an epoch it "
                "would save rank 0's own model, without the work of the other peers since the last average; give "
                'save_freq="epoch", or request checkpoints, which hold averages: kf.control.every(100).checkpoint()'
            )


def without_writers(callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks that run on every peer: all callbacks except those that only write."""
    return [one for one in callbacks if not isinstance(one, _WRITERS)]


def _hearing(callbacks: Sequence[Any], *hooks: str) -> list[Any]:
    """The callbacks that override at least one of ``hooks``; most callbacks override no hook for batches."""
    base = keras.callbacks.Callback
    return [
        one
        for one in callbacks
        if any(getattr(getattr(one, hook), "__func__", None) is not getattr(base, hook) for hook in hooks)
    ]


def _kept(callback: Any) -> dict[str, Any]:
    file = getattr(callback, "csv_file", None)
    # On the leading peer. A successor cuts the file to this size, and so removes lines that a lost leader wrote later.
    if isinstance(callback, keras.callbacks.CSVLogger) and file is not None and os.path.isfile(callback.filename):
        callback.kungfu_bytes = os.path.getsize(callback.filename)
    return plain_attributes(callback, without=_NOT_KEPT)


def _cut(logger: Any) -> None:
    """Removes from a CSV log the lines for epochs that will be written again, left by an earlier rank 0 or run."""
    written = getattr(logger, "kungfu_bytes", None)
    if written is not None and os.path.isfile(logger.filename) and os.path.getsize(logger.filename) > written:
        os.truncate(logger.filename, written)
        logger.append_header = not written


def _name_others(callbacks: Sequence[Any], model: Any) -> None:
    """Prints the attributes of the user's callbacks whose values cannot be sent to a joiner."""
    metrics = {id(one) for one in metrics_of(model)}
    for one in callbacks:
        if isinstance(one, _WRITERS) or type(one) is getattr(keras.callbacks, type(one).__name__, None):
            continue
        plain = {*plain_attributes(one, without=()), *_NOT_KEPT}
        others = {name: value for name, value in vars(one).items() if name not in plain and id(value) not in metrics}
        named = [
            f"{name} ({type(value).__name__})"
            for name, value in others.items()
            if isinstance(value, keras.metrics.Metric) or not (isinstance(value, _HARMLESS) or callable(value))
        ]
        if named:
            print(
                f"kungfu: the callback {type(one).__name__} keeps in {', '.join(named)} what a peer that joins is not "
                "given, and begins with its own of: numbers, texts, arrays, variables, and lists and dictionaries of "
                "these are given to it",
                file=sys.stderr,
            )


def _refuse(callbacks: Sequence[Any]) -> None:
    settings = read_settings()
    for one in callbacks:
        given = None if settings is None else settings.checkpoints
        if isinstance(one, keras.callbacks.BackupAndRestore) and given is not None and (given.resume or given.restarts):
            option = "--restarts" if given.restarts else "--resume"
            raise UsageError(
                f"model.fit() was given BackupAndRestore under kungfu-run {option}: both say where training begins; "
                f"leave one of them out. {option} also has the position in the data and the state of policies"
            )
        if isinstance(one, keras.callbacks.CallbackList):
            raise UsageError("model.fit() was given a CallbackList under kungfu-run: give a plain list of callbacks")
