"""Separate random streams for each peer inside a step.

After ``keras.utils.set_random_seed`` every peer would draw the same numbers. The program's global seed must not change:
shared orders of data, initial values and draws between steps must be equal everywhere. So the step's graph uses a
per-peer seed, and each generator in it a per-peer state.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.framework_internals import make_resource_variable, replace_capture
from kungfu.training.graph.variable_io import dtype_of, is_variable, read_handles, shape_of

_LARGEST_SEED = 2**31 - 2


def joiner_seed(seed: int, *, job: str) -> int:
    """The seed of a joiner; it differs between runs of a job, since a resumed job may reuse a peer's number.

    >>> joiner_seed(0, job="1f") == joiner_seed(0, job="2f"), joiner_seed(0, job="1f") == 0
    (False, False)
    """
    return (zlib.crc32(job.encode()) << 64) | (seed % 2**64)


class RandomStreams:
    """The random streams of one peer, derived from ``entropy``: the job's seed, the peer's number, and the steps done
    before this run. ``untouched``: states to keep, as they are equal on all peers, or already per-peer; ``planted``:
    registered states, which are set in place because checkpoints contain these variables."""

    def __init__(
        self, entropy: Sequence[int], *, untouched: Sequence[tf.Variable] = (), planted: Sequence[tf.Variable] = ()
    ) -> None:
        self._entropy, self._untouched, self._planted = list(entropy), untouched, planted
        self._states: dict[int, tf.Variable] = {}  # by the id of the handle that each state replaces
        self._seen: list[Any] = []  # handles that received a state; kept alive, so that their ids stay unique

    def seed(self, graph: Any) -> None:
        """Tracing: seeds the draws in this graph, and in the graphs inside it, with a per-peer seed."""
        graph.seed = 1 + int(self._words([graph.seed or 0], 1)[0]) % _LARGEST_SEED

    def exchange(self, graph: Any) -> None:
        """Tracing, at the end: replaces the states of the graph's generators with per-peer states."""
        untouched = {id(one.handle) for one in self._untouched}
        planted = {id(one.handle): one for one in self._planted}
        found = [(one, inside) for one, inside in graph.captures if is_variable(one) and id(one) not in untouched]
        states = _states_of_generators(one for one, _ in found)
        for handle, inside in found:
            if id(handle) not in states or not _has_value(handle):  # created in this trace; another trace follows
                continue
            # A registered generator of this peer: its variable is assigned the state.
            if id(handle) in planted:
                with tf.init_scope():
                    planted[id(handle)].assign(self._state(handle))
                continue
            # Any other generator: the graph draws from a replacement variable, the same in every trace.
            if id(handle) not in self._states:
                with tf.init_scope(), tf.device(handle.device):
                    self._states[id(handle)] = make_resource_variable(self._state(handle), name="kungfu/stream")
            own = self._states[id(handle)]
            replace_capture(graph, handle, external=own.handle, internal=inside)

    def _state(self, handle: Any) -> Any:
        """The initial state of a generator on this peer; it also depends on the state set by the program."""
        self._seen.append(handle)
        with tf.init_scope():
            (value,) = read_handles([handle])
            given = [int(one) % 2**64 for one in np.ravel(value.numpy())]
            words = self._words([len(self._seen), *given], int(np.prod(shape_of(handle))))
            return tf.cast(tf.reshape(tf.constant(words, tf.uint32), shape_of(handle)), dtype_of(handle))

    def _words(self, more: Sequence[int], count: int) -> Any:
        return np.random.SeedSequence([*self._entropy, *more]).generate_state(count)


def _has_value(handle: Any) -> bool:
    with tf.init_scope():
        return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def _states_of_generators(handles: Iterable[Any]) -> set[int]:
    """The ids of the handles that are states of generators of TensorFlow or Keras."""
    candidates = {id(one) for one in handles if dtype_of(one) in (tf.int64, tf.int32, tf.uint32) and shape_of(one).rank}
    if not candidates:
        return set()
    tensorflows, of_keras = _subclasses(tf.random.Generator), _subclasses(keras.random.SeedGenerator)
    # A graph contains handles, but not the objects that own them.
    generators = _instances(tensorflows | of_keras)
    return candidates & {id((one.state if type(one) in tensorflows else one.state.value).handle) for one in generators}


def _instances(classes: set[type]) -> list[Any]:
    """All live instances of exactly these classes, found by the garbage collector, even after ``gc.freeze``."""
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()
    found = gc.get_referrers(*classes)
    if is_frozen:
        gc.freeze()
    return [one for one in found if type(one) in classes]


def _subclasses(kind: type) -> set[type]:
    """The class and all its subclasses."""
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))
