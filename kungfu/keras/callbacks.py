"""Keras' callbacks on the peers of a job: which run where, with whose state.

Those that only write (a progress bar, checkpoints, a log) run on rank 0. All others run on every peer, with equal
numbers. What they keep in plain attributes (numbers, texts, arrays, and lists and dictionaries of those) is rank 0's: a
peer that joins is given it, and one that takes the lead goes on writing with what the leader before it had kept.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kungfu.errors import UsageError

__all__ = ["JobCallbacks", "pack", "unpack"]

_WRITERS = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)
# What Keras itself gives every callback, and how a CSVLogger begins its file, which is another matter on each leader.
_NOT_KEPT = frozenset({"params", "_params", "model", "_model", "append", "append_header"})


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

    def __init__(self, callbacks: Sequence[Any], model: Any, *, verbose: int, params: dict[str, int]) -> None:
        _refuse(callbacks)
        self._running = keras.callbacks.CallbackList(
            list(callbacks), add_history=True, add_progbar=verbose != 0, model=model, verbose=verbose, **params
        )
        self._all = list(self._running.callbacks)
        # Until this peer leads, its writers do not run.
        self._running.callbacks = [one for one in self._all if not isinstance(one, _WRITERS)]
        self._leads = self._began = False
        self._epoch = -1  # of which they were told that it begins

    @property
    def running(self) -> Any:
        """Those that run on this peer, as the list that Keras' ``evaluate`` takes."""
        return self._running

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
        for one, before in zip(writers, kept, strict=True):
            if took_over and isinstance(one, keras.callbacks.CSVLogger):
                one.append = True  # behind the lines of the leader before
            one.on_train_begin()
            if took_over:  # it goes on where the leader before was, in the middle of an epoch
                _put(one, before)
                one.on_epoch_begin(self._epoch)

    def epoch_begins(self, epoch: int) -> None:
        """Tells them, once."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._running.on_epoch_begin(epoch)

    def epoch_ends(self, epoch: int, logs: dict[str, Any]) -> None:
        self._running.on_epoch_end(epoch, dict(logs))

    def batch_begins(self, batch: int) -> None:
        self._running.on_train_batch_begin(batch)

    def batch_ends(self, batch: int, logs: dict[str, Any]) -> None:
        self._running.on_train_batch_end(batch, logs)

    def end(self, logs: dict[str, Any]) -> None:
        """Training is over."""
        self._running.on_train_end(logs)

    # ---- what they keep --------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Any]:
        """Plain attributes of all of them, and their types, by which peers see that they have the same list."""
        return {"types": self._types(), "all": [_kept(one) for one in self._all]}

    def kept_by_writers(self) -> dict[str, Any]:
        """Those that only the leader knows."""
        return {"types": self._types(), "writers": [_kept(one) for one in self._writers()]}

    def take(self, kept: dict[str, Any]) -> None:
        """Takes rank 0's; ``UsageError`` where that has other callbacks."""
        if kept["types"] != self._types():
            raise UsageError(
                f"model.fit() has the callbacks {self._types()} on this peer, and {kept['types']} on rank 0: give the "
                "same list on all peers; those that only write run on rank 0 by themselves"
            )
        group = self._all if "all" in kept else self._writers()
        for one, attributes in zip(group, kept["all" if "all" in kept else "writers"], strict=True):
            _put(one, attributes)

    def _writers(self) -> list[Any]:
        return [one for one in self._all if isinstance(one, _WRITERS)]

    def _types(self) -> list[str]:
        return [type(one).__name__ for one in self._all]


def _kept(callback: Any) -> dict[str, Any]:
    """Its attributes that are plain values."""
    return {name: value for name, value in vars(callback).items() if name not in _NOT_KEPT and _is_plain(value)}


def _put(callback: Any, attributes: dict[str, Any]) -> None:
    """Gives a callback these attributes; a list or dictionary that it has is filled, as others may hold it too."""
    for name, value in attributes.items():
        there = getattr(callback, name, None)
        if type(there) is list and type(value) is list:
            there[:] = value
        elif type(there) is dict and type(value) is dict:
            there.clear()
            there.update(value)
        elif value is not None or _is_plain(there):  # what has been opened here stays open
            setattr(callback, name, value)


def _refuse(callbacks: Sequence[Any]) -> None:
    for one in callbacks:
        if isinstance(one, keras.callbacks.BackupAndRestore):
            raise UsageError(
                "model.fit() was given BackupAndRestore under kungfu-run: the state of a job is more than the model, "
                "and may be resumed with another number of peers; use kungfu-run --checkpoints DIR and --resume DIR"
            )
        if isinstance(one, keras.callbacks.CallbackList):
            raise UsageError("model.fit() was given a CallbackList under kungfu-run: give a plain list of callbacks")


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, dict) and all(isinstance(key, str) and _is_plain(one) for key, one in value.items())


def pack(value: Any) -> bytes:
    """Plain values as bytes: a text in JSON, and the arrays that it refers to; nothing that could be code.

    >>> unpack(pack({"best": float("inf"), "weights": [np.zeros(2)], "pair": (1, None)}))
    {'best': inf, 'weights': [array([0., 0.])], 'pair': (1, None)}
    """
    arrays: list[Any] = []

    def laid(one: Any) -> Any:
        if isinstance(one, np.ndarray | np.generic):
            arrays.append(np.asarray(one))
            return {"array": len(arrays) - 1, "scalar": isinstance(one, np.generic)}
        if isinstance(one, list | tuple):
            return {type(one).__name__ if type(one) in (list, tuple) else "list": [laid(entry) for entry in one]}
        if isinstance(one, dict):
            return {"dict": {key: laid(entry) for key, entry in one.items()}}
        return one

    text = json.dumps(laid(value)).encode()
    room = io.BytesIO()
    np.savez(room, text=np.frombuffer(text, np.uint8), **{f"array_{place}": one for place, one in enumerate(arrays)})
    return room.getvalue()


def unpack(content: bytes) -> Any:
    """What `pack` was given."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:

        def value(one: Any) -> Any:
            if not isinstance(one, dict):
                return one
            if "array" in one:
                array = found[f"array_{one['array']}"]
                return array[()] if one["scalar"] else array
            if "dict" in one:
                return {key: value(entry) for key, entry in one["dict"].items()}
            ((kind, entries),) = one.items()
            made = [value(entry) for entry in entries]
            return tuple(made) if kind == "tuple" else made

        return value(json.loads(found["text"].tobytes()))
