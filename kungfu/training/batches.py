"""The loader: batches of this peer's slice, cut at the agreed position, each with the stamp that the step checks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.deciding.data import Stamp, cut
from kungfu.training.graph.ledger import Ledger
from kungfu.training.graph.step import UNSTAMPED

__all__ = ["DataSource", "Stamps", "batches", "checked_source"]


@dataclass(frozen=True)
class DataSource:
    """Arrays in a nest, all with ``samples`` entries, and how they are walked."""

    arrays: Any
    samples: int
    batch_size: int
    epochs: int
    seed: int


def checked_source(arrays: Any, *, batch_size: int, epochs: int, seed: int) -> DataSource:
    """The data of ``training.batches``, or a ``UsageError`` that says what is wrong with it."""
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(arrays)]
    lengths = [len(leaf) if leaf.ndim else -1 for leaf in leaves]
    if not leaves or min(lengths) < 0 or len(set(lengths)) != 1:
        raise UsageError(
            f"training.batches() takes arrays with one entry a sample in their first dimension; got {len(leaves)} "
            f"arrays of lengths {lengths}"
        )
    for name, value, least in (("batch_size", batch_size, 1), ("epochs", epochs, 0), ("seed", seed, 0)):
        if not isinstance(value, int | np.integer) or value < least:
            raise UsageError(f"training.batches({name}={value!r}): must be an integer of at least {least}")
    if batch_size > lengths[0]:
        raise UsageError(f"training.batches(batch_size={batch_size}): the data has only {lengths[0]} samples")
    return DataSource(tf.nest.pack_sequence_as(arrays, leaves), lengths[0], int(batch_size), int(epochs), int(seed))


class Stamps:
    """Which batch was cut for what. A batch is known by its tensors; one that was mapped in between, by its turn."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Stamp]] = {}
        self._last: Stamp | None = None

    def put(self, tensors: Sequence[Any], stamp: Stamp) -> None:
        self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}
        for tensor in tensors:
            self._known[id(tensor)] = (weakref.ref(tensor), stamp)
        self._last = stamp

    def of(self, tensors: Sequence[Any]) -> tuple[int, int, int]:
        """The stamp of a step's arguments; the last one given out if none of them is known."""
        for tensor in tensors:
            reference, stamp = self._known.get(id(tensor), (None, None))
            if reference is not None and stamp is not None and reference() is tensor:
                return stamp.epoch, stamp.offset, stamp.version
        return UNSTAMPED if self._last is None else (self._last.epoch, self._last.offset, self._last.version)


def batches(
    source: DataSource,
    ledger: Ledger,
    stamps: Stamps,
    *,
    over: Callable[[], bool],
    calls: Callable[[], int],
    most_peers: int,
) -> Iterator[Any]:
    """Yields this peer's slice of one step after the other until ``epochs`` are done or training is ``over``.

    ``calls`` counts the calls of the step: a batch that was not given to it would come back for ever. Before this peer
    is in a view, its batch only serves to trace and warm up; it is as small as with ``most_peers`` peers.
    """
    before = -1
    while not over():
        position, place = ledger.progress.position(), ledger.place
        if position.epoch >= source.epochs:
            return
        if calls() == before:
            raise UsageError(
                "a batch of training.batches() was not given to the function marked @training.step: "
                "the loader follows the steps that were done, so every batch must become one"
            )
        before = calls()
        indices = cut(
            position,
            samples=source.samples,
            seed=source.seed,
            global_batch_size=int(place.global_batch_size.numpy()) or source.batch_size,
            size=int(place.size.numpy()) if place.version.numpy() else most_peers,
            rank=int(place.rank.numpy()),
        )
        batch = tf.nest.map_structure(lambda array: tf.convert_to_tensor(array[indices]), source.arrays)  # noqa: B023 - used at once
        stamps.put(tf.nest.flatten(batch), Stamp(position.epoch, position.offset, int(place.version.numpy())))
        yield batch
