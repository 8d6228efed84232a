"""Random numbers of a peer's own for what is drawn inside a step.

After ``keras.utils.set_random_seed`` every peer would draw the same. The global seed stays the program's: orders that
peers share, first values and what is drawn between steps must be equal everywhere. So the step's graph has a seed of
its own, and a generator that it draws from stands there for another one, with a state of this peer's.
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
    """The seed of a joiner: in a job that was resumed another peer may have had its number before.

    >>> joiner_seed(0, job="1f") == joiner_seed(0, job="2f"), joiner_seed(0, job="1f") == 0
    (False, False)
    """
    return (zlib.crc32(job.encode()) << 64) | (seed % 2**64)


class RandomStreams:
    """The random streams of one peer.

    Args:
        entropy: The job's seed, the peer's number, and the steps done before it was resumed.
        untouched: States of generators that are equal on all peers, or got a state of this peer's already.
        planted: The variables that get one in their own place, which a checkpoint saves.
    """

    def __init__(
        self, entropy: Sequence[int], *, untouched: Sequence[tf.Variable] = (), planted: Sequence[tf.Variable] = ()
    ) -> None:
        self._entropy, self._untouched, self._planted = list(entropy), untouched, planted
        self._states: dict[int, tf.Variable] = {}  # by the handle that they stand for
        self._seen: list[Any] = []  # handles whose states were given out; keeps them, and with them their ids

    def seed(self, graph: Any) -> None:
        """Tracing: what is drawn in this graph, and in those inside it, follows from a seed of this peer's."""
        graph.seed = 1 + int(self._words([graph.seed or 0], 1)[0]) % _LARGEST_SEED

    def exchange(self, graph: Any) -> None:
        """Tracing, at the end: generators that the graph draws from have states of this peer's there."""
        untouched = {id(one.handle) for one in self._untouched}
        planted = {id(one.handle): one for one in self._planted}
        found = [(one, inside) for one, inside in graph.captures if is_variable(one) and id(one) not in untouched]
        states = _states_of_generators(one for one, _ in found)
        for handle, inside in found:
            if id(handle) not in states or not _has_value(handle):  # born in this trace: another one will follow
                continue
            # A registered generator of this peer's: its own variable gets the state.
            if id(handle) in planted:
                with tf.init_scope():
                    planted[id(handle)].assign(self._state(handle))
                continue
            # Any other one: the graph draws from a state beside it, the same one in every trace.
            if id(handle) not in self._states:
                with tf.init_scope(), tf.device(handle.device):
                    self._states[id(handle)] = make_resource_variable(self._state(handle), name="kungfu/stream")
            own = self._states[id(handle)]
            replace_capture(graph, handle, external=own.handle, internal=inside)

    def _state(self, handle: Any) -> Any:
        """The initial state of a generator here: it depends on the state that it has in the program, too."""
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
    """The ids of those handles that are the states of generators, TensorFlow's or Keras'."""
    candidates = {id(one) for one in handles if dtype_of(one) in (tf.int64, tf.int32, tf.uint32) and shape_of(one).rank}
    if not candidates:
        return set()
    tensorflows, of_keras = _subclasses(tf.random.Generator), _subclasses(keras.random.SeedGenerator)
    # A graph knows handles, and not whose they are.
    generators = _instances(tensorflows | of_keras)
    return candidates & {id((one.state if type(one) in tensorflows else one.state.value).handle) for one in generators}


def _instances(classes: set[type]) -> list[Any]:
    """The collector's objects of those very classes, of which each refers to its own; frozen ones included."""
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()
    found = gc.get_referrers(*classes)
    if is_frozen:
        gc.freeze()
    return [one for one in found if type(one) in classes]


def _subclasses(kind: type) -> set[type]:
    """The class and all below it."""
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))
