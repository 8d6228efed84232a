"""Keras' callbacks on the peers of a job: which run where, with whose state.

Those that only write (a progress bar, checkpoints, a log) run on rank 0. All others run on every peer, with equal
numbers. What they keep in plain attributes (numbers, texts, arrays, and lists and dictionaries of those) is rank 0's: a
peer that joins is given it, and one that takes the lead goes on writing with what the leader before it had kept.
"""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.metrics import metrics_of
from kungfu.keras.plain_values import pack, plain_attributes, put_attributes, unpack
from kungfu.runtime.api import read_settings
from kungfu.training.job_loop import Meeting

__all__ = ["JobCallbacks", "without_writers"]

_WRITERS = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.BackupAndRestore,
)
# What Keras itself gives every callback, and how a CSVLogger begins its file, which is another matter on each leader.
_NOT_KEPT = frozenset({"params", "_params", "model", "_model", "append", "append_header"})
# They hold nothing that training changes, or it goes along anyway.
_HARMLESS = (os.PathLike, ModuleType, tf.data.Dataset, keras.utils.PyDataset, keras.Layer, keras.optimizers.Optimizer)


class JobCallbacks:
    """The callbacks of one ``fit`` on one peer.

    Args:
        callbacks: The user's.
        model: The model.
        verbose: 0 for silence, 1 for a progress bar, 2 for a line per epoch.
        params: ``epochs`` and ``steps``, as Keras tells them.

    Raises:
        UsageError: One of them cannot run in a job.
    """

    def __init__(self, callbacks: Any, model: Any, *, verbose: int, params: dict[str, int]) -> None:
        given = keras.tree.flatten(callbacks)
        _refuse(given)
        self._model = model
        self._running = keras.callbacks.CallbackList(
            given, add_history=True, add_progbar=verbose != 0, verbose=verbose, **params
        )
        self._all = list(self._running.callbacks)
        # Until this peer leads, its writers do not run, and know of no model, of which some would write at once.
        self._running.callbacks = without_writers(self._all)
        self._running.set_model(model)
        self._leads = self._began = False
        self._epoch = -1  # of which they were told that it begins

    @property
    def running(self) -> Any:
        """Those that run on this peer, as the list that Keras' ``evaluate`` takes."""
        return self._running

    @property
    def restores(self) -> bool:
        """Whether one of them restores a backup when training begins."""
        return any(isinstance(one, keras.callbacks.BackupAndRestore) for one in self._all)

    def enter(self, *, leads: bool, epoch: int | None) -> None:
        """This peer is in a view.

        Args:
            leads: Whether it is rank 0.
            epoch: The epoch under way, as Keras counts it; ``None`` where there is none.
        """
        if not self._began:
            self._began = True
            self._running.on_train_begin()
        if leads and not self._leads:
            self._take_the_lead()
        if epoch is not None:
            self.epoch_begins(epoch)

    def _take_the_lead(self) -> None:
        writers = self._writers()
        kept, took_over = [_kept(one) for one in writers], self._epoch >= 0
        self._leads, self._running.callbacks = True, list(self._all)
        if not took_over:
            _name_others(self._all, self._model)
        for one, before in zip(writers, kept, strict=True):
            one.set_model(self._model)
            if took_over and isinstance(one, keras.callbacks.BackupAndRestore):
                put_attributes(one, before)  # it would restore what was the state an epoch ago
                continue
            if took_over and isinstance(one, keras.callbacks.CSVLogger):
                one.append = True  # after the lines of the leader before
            one.on_train_begin()
            if took_over:  # it goes on where the leader before was, in the middle of an epoch
                put_attributes(one, before)
                one.on_epoch_begin(self._epoch)

    def epoch_begins(self, epoch: int) -> None:
        """Tells them, once."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._running.on_epoch_begin(epoch)

    def epoch_ends(self, epoch: int, logs: dict[str, Any]) -> None:
        self._running.on_epoch_end(epoch, dict(logs))

    def batch_begins(self, batch: int) -> None:
        for one in self._hearing("on_train_batch_begin", "on_batch_begin"):
            one.on_train_batch_begin(batch, logs={})

    def batch_ends(self, batch: int, logs: Callable[[], dict[str, Any]]) -> None:
        """Tells those who listen; ``logs`` is called if there is one."""
        hearing = self._hearing("on_train_batch_end", "on_batch_end")
        if not hearing:
            return
        given = logs()
        for one in hearing:
            one.on_train_batch_end(batch, logs=given)

    def _hearing(self, *hooks: str) -> list[Any]:
        """The running callbacks that have one of these methods of their own; most have none for a batch."""
        base = keras.callbacks.Callback
        return [
            one
            for one in self._running.callbacks
            if any(getattr(getattr(one, hook), "__func__", None) is not getattr(base, hook) for hook in hooks)
        ]

    def end(self, logs: dict[str, Any]) -> None:
        """Training is over."""
        self._running.on_train_end(logs)

    # ---- what they keep --------------------------------------------------------------------------------------------

    def take_leaders(self, meeting: Meeting, *, of_writers: bool = False) -> None:
        """What they keep becomes rank 0's.

        Args:
            meeting: Of all peers.
            of_writers: Only of those that run on rank 0 alone; the others were told the same everywhere.

        Raises:
            UsageError: Rank 0 has other callbacks.

        Cost:
            A message of some bytes for each callback; what a callback keeps is sent where a peer keeps something else.
        """
        own = self.kept_by_writers() if of_writers else self.kept()
        ((group, values),) = [(name, one) for name, one in own.items() if name != "types"]
        packed = [pack(one) for one in values]
        told = {"types": own["types"], "sums": [[len(one), zlib.crc32(one)] for one in packed]}
        agreed = unpack(meeting.from_leader(pack(told) if meeting.leads else b""))
        self._refuse_others(agreed["types"])
        others = meeting.any_of([mine != one for mine, one in zip(told["sums"], agreed["sums"], strict=True)])
        lengths = [length for (length, _), is_other in zip(agreed["sums"], others, strict=True) if is_other]
        sent = b"".join(one for one, is_other in zip(packed, others, strict=True) if is_other)
        found = io.BytesIO(meeting.from_leader(sent if meeting.leads else b""))
        if not meeting.leads:
            taken = (unpack(found.read(length)) for length in lengths)
            self.take({"types": agreed["types"], group: [next(taken) if is_other else {} for is_other in others]})

    def kept(self) -> dict[str, Any]:
        """Plain attributes of all of them, and their types, by which peers see that they have the same list."""
        return {"types": self._types(), "all": [_kept(one) for one in self._all]}

    def kept_by_writers(self) -> dict[str, Any]:
        """Those that only the leader knows."""
        return {"types": self._types(), "writers": [_kept(one) for one in self._writers()]}

    def take(self, kept: dict[str, Any]) -> None:
        """Takes rank 0's; ``UsageError`` where that has other callbacks."""
        self._refuse_others(kept["types"])
        group = self._all if "all" in kept else self._writers()
        for one, attributes in zip(group, kept["all" if "all" in kept else "writers"], strict=True):
            put_attributes(one, attributes)

    def _refuse_others(self, types: list[str]) -> None:
        if types != self._types():
            raise UsageError(
                f"model.fit() has the callbacks {self._types()} on this peer, and {types} on rank 0: give the same "
                "list on all peers; those that only write run on rank 0 by themselves"
            )

    def _writers(self) -> list[Any]:
        return [one for one in self._all if isinstance(one, _WRITERS)]

    def _types(self) -> list[str]:
        return [type(one).__name__ for one in self._all]


def without_writers(callbacks: Sequence[Any]) -> list[Any]:
    """Those of them that run on every peer."""
    return [one for one in callbacks if not isinstance(one, _WRITERS)]


def _kept(callback: Any) -> dict[str, Any]:
    return plain_attributes(callback, without=_NOT_KEPT)


def _name_others(callbacks: Sequence[Any], model: Any) -> None:
    """Says which attributes of the user's callbacks hold what cannot be given to a peer that joins."""
    metrics = {id(one) for one in metrics_of(model)}
    for one in callbacks:
        if isinstance(one, _WRITERS) or type(one) is getattr(keras.callbacks, type(one).__name__, None):
            continue
        plain = {*plain_attributes(one, without=()), *_NOT_KEPT}
        others = {name: value for name, value in vars(one).items() if name not in plain and id(value) not in metrics}
        named = [f"{name} ({type(value).__name__})" for name, value in others.items() if not _is_harmless(value)]
        if named:
            print(
                f"kungfu: the callback {type(one).__name__} keeps in {', '.join(named)} what a peer that joins is not "
                "given, and begins with its own of: numbers, texts, arrays, variables, and lists and dictionaries of "
                "these are given to it",
                file=sys.stderr,
            )


def _is_harmless(value: Any) -> bool:
    is_metric = isinstance(value, keras.metrics.Metric)
    return isinstance(value, _HARMLESS) or (callable(value) and not is_metric)


def _refuse(callbacks: Sequence[Any]) -> None:
    settings = read_settings()
    for one in callbacks:
        if isinstance(one, keras.callbacks.BackupAndRestore) and settings is not None and settings.checkpoints.resume:
            raise UsageError(
                "model.fit() was given BackupAndRestore under kungfu-run --resume: both say where training begins; "
                "leave one of them out. --resume also has the position in the data and the state of policies"
            )
        if isinstance(one, keras.callbacks.CallbackList):
            raise UsageError("model.fit() was given a CallbackList under kungfu-run: give a plain list of callbacks")
