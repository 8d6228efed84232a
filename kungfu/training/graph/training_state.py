"""The variables of a training run, grouped by how peers share their values.

*Shared*: weights, optimizer slots, progress, and folds (memories of policies) that are equal on all peers; covered
by the digest, and sent to a joiner. *Averaged*: floating-point statistics of the data in a layer (BatchNorm); local
between barriers, averaged at barriers. *Of rank 0*: layers' variables that are declared to be those of rank 0 (see
`kungfu.training.graph.layer_memory`); local between barriers, which assign rank 0's values. *Local*: the states of seed
generators, derived from the job's seed and the peer's number; with equal states all peers would drop the same units.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.framework_internals import layer_statistics
from kungfu.runtime.api import Buffers, digests, memory_of, sampled, writable_memory_of
from kungfu.training.graph.layer_memory import LayerReduction
from kungfu.training.graph.variable_io import read_variable, write_variable


@dataclass(frozen=True)
class StateClasses:
    """The variables of a run by name, in four classes of sharing; in the same order on all peers."""

    shared: Mapping[str, tf.Variable]
    averaged: Mapping[str, tf.Variable]
    local: Mapping[str, tf.Variable]
    of_rank_0: Mapping[str, tf.Variable] = field(default_factory=dict)

    def all(self) -> dict[str, tf.Variable]:
        """Every variable."""
        return {**self.shared, **self.averaged, **self.local, **self.of_rank_0}


def classify(
    model: object,
    optimizers: Sequence[object],
    agreed: Mapping[str, tf.Variable],
    *,
    reductions: Mapping[int, LayerReduction] = MappingProxyType({}),
) -> StateClasses:
    """Sorts variables of a Keras model and its optimizers, and kungfu's shared variables (``agreed``), into classes;
    ``reductions`` maps the ids of layers' variables to their declared aggregation."""
    statistics = {id(weight) for weight in layer_statistics(model)}
    weights = list(model.weights)  # type: ignore[attr-defined]
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]  # type: ignore[attr-defined]
    # Averaged: a layer's floating-point statistics, unless declared otherwise. A step counter is an integer, so shared.
    floating = [w for w in weights if id(w) in statistics and tf.as_dtype(w.dtype).is_floating]
    averaged = [w for w in floating if reductions.get(id(w), "mean") == "mean"]
    of_rank_0 = [w for w in weights if reductions.get(id(w)) == "only_first_replica"]
    moving = {id(w) for w in (*averaged, *of_rank_0)}
    shared = [w for w in weights if id(w) not in moving and not any(w is seed for seed in seeds)]
    slots = [variable for optimizer in optimizers for variable in optimizer.variables]  # type: ignore[attr-defined]
    return StateClasses(
        {**_named("model", shared), **_named("optimizer", slots), **agreed},
        _named("model", averaged),
        _named("model", seeds),
        _named("model", of_rank_0),
    )


def _named(prefix: str, variables: Iterable[object]) -> dict[str, tf.Variable]:
    """The variables by prefix and Keras path; equal paths are numbered in Keras' order, which follows the program."""
    named: dict[str, tf.Variable] = {}
    for variable in variables:
        name = path = f"{prefix}/{getattr(variable, 'path', None) or variable.name}"  # type: ignore[attr-defined]
        count = 1
        while name in named:
            name, count = f"{path}:{count}", count + 1
        named[name] = variable if isinstance(variable, tf.Variable) else variable.value  # type: ignore[attr-defined]
    return named


def plant_seeds(classes: StateClasses, *, seed: int, peer: int, after: int = 0) -> None:
    """Gives every seed generator a distinct state, from the job's seed, the peer and the generator's index. ``after``
    is the number of steps done before this run; it is mixed in, so that the run does not repeat earlier draws."""
    for index, variable in enumerate(classes.local.values()):
        entropy = [seed, peer, index, after] if after else [seed, peer, index]
        words = np.random.SeedSequence(entropy).generate_state(int(np.prod(variable.shape)))
        variable.assign(tf.cast(tf.reshape(tf.constant(words, tf.uint32), variable.shape), variable.dtype))


class TrainingState:
    """The replicated state in memory: shared, averaged and rank 0's variables, and registered values.

    Registered values are Python objects that the program changes between two steps. Variables mirror the values as of
    the last read before a step; a joiner receives these mirrors, and no digest covers them.

    CPU variables are read and overwritten in place; for variables on another device, a copy in host memory is used.

    Args:
        on_rescaled: Resets the folds that declare a reset on rescale.
    """

    def __init__(self, classes: StateClasses, *, on_rescaled: Callable[[], None]) -> None:
        self.classes = classes
        self._on_rescaled = on_rescaled
        self.on_regrouped: Callable[..., None] = lambda **_: None  # averages the models of a run that does so
        self._variables = self.agreed()
        with tf.device("/CPU:0"):
            self._registered_before = tf.Variable(0, dtype=tf.int64, trainable=False, name="kungfu/registered_before")

    def carry(self, registered: StateClasses) -> StateClasses:
        """Adds the registered variables to the replicated state; returns all variables of the resulting state."""
        own = self.classes
        self._variables += [*registered.shared.values(), *registered.averaged.values(), self._registered_before]
        return StateClasses(
            {**own.shared, **registered.shared},
            {**own.averaged, **registered.averaged},
            {**own.local, **registered.local},
            own.of_rank_0,
        )

    def registered_read(self, *, step: int) -> None:
        """Records that registered values were read into their mirrors before ``step``."""
        write_variable(self._registered_before, step)

    def registered_before(self) -> int:
        """The step before which registered values were last read into their mirrors; 0 if this has never happened."""
        return int(read_variable(self._registered_before))

    def shared(self) -> list[tf.Variable]:
        """The shared variables, which are equal on all peers between two steps."""
        return list(self.classes.shared.values())

    def agreed(self) -> list[tf.Variable]:
        """The shared variables and the layers' statistics; all are equal on all peers after a barrier's averages."""
        classes = self.classes
        return [*classes.shared.values(), *classes.averaged.values(), *classes.of_rank_0.values()]

    def handles(self) -> list[tf.Tensor]:
        """The resource handles of all variables that a barrier may write."""
        return [variable.handle for variable in [*self._variables, *self.classes.local.values()]]

    def readable(self) -> Buffers:
        """A readable view of the memory of all replicated variables; see ``ReplicatedState``."""
        return memory_of(self._variables)

    def writable(self) -> AbstractContextManager[Buffers]:
        """A writable view of the memory of all replicated variables; see ``ReplicatedState``."""
        return writable_memory_of(self._variables)

    def digest(self) -> dict[str, int]:
        """The checksum of every shared variable, by name; computed in one pass over the variables' memory."""
        return dict(zip(self.classes.shared, digests(self._shared_memory()), strict=True))

    def sampled_digest(self, turn: int) -> dict[str, int]:
        """The checksum of one slice of every shared variable; each ``turn`` selects another slice."""
        return dict(zip(self.classes.shared, digests(sampled(self._shared_memory(), turn)), strict=True))

    def values(self, indices: Sequence[int]) -> list[np.ndarray]:
        """The values of the shared variables with these indices in the digest; see ``ReplicatedState``."""
        shared = self.shared()
        return [read_variable(shared[index]) for index in indices]

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Assigns values to shared variables, by their indices in the digest; see ``ReplicatedState``."""
        shared = self.shared()
        for index, value in values.items():
            write_variable(shared[index], value)

    def rescaled(self) -> None:
        """Resets folds (policies' memories) that declare a reset on rescale; called before a new view's digests."""
        self._on_rescaled()

    def regrouped(self, *, rank: int, size: int, is_source: bool) -> None:
        """Averages the models of the survivors of a loss, if the run averages models; see ``ReplicatedState``."""
        self.on_regrouped(rank=rank, size=size, is_source=is_source)

    def _shared_memory(self) -> Buffers:
        buffers = self.readable()
        return replace(buffers, table=buffers.table[: len(self.classes.shared)])


def checksum_of(variables: Sequence[tf.Variable]) -> int:
    """A 32-bit checksum of the contents of variables, in their order.

    Cost:
        One pass over the variables' memory.

    >>> checksum_of([tf.Variable([1.0, 2.0])]) == checksum_of([tf.Variable([2.0, 1.0])])
    False
    """
    return zlib.crc32(np.array(digests(memory_of(variables)), np.uint64).tobytes())


_PARTS = 4  # parts of a 64-bit digest: squares of 16 bits can be summed over many peers without overflow


def differing_variables(
    variables: Sequence[tf.Variable], *, size: int, total: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[int]:
    """The indices of the variables that are not bitwise equal on all ``size`` peers; the same on every peer.

    Numbers ``x`` of ``n`` peers are equal exactly if ``n * sum(x**2) == sum(x)**2`` (Cauchy and Schwarz). Every peer
    evaluates this equation from the same two sums.

    Args:
        variables: The variables to compare, in the same order on all peers.

    Cost:
        One pass over the variables' memory, and one message with 64 bytes for each variable.

    >>> variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    >>> differing_variables(variables, size=2, total=lambda given: [2 * one for one in given])
    []
    """
    # Splits each 64-bit checksum into four numbers of 16 bits, so that the sum of their squares does not overflow.
    words = np.array(digests(memory_of(variables)), np.uint64)
    parts = words.view(np.uint16).astype(np.int64)
    sums, squares = (one.numpy() for one in total([tf.constant(parts), tf.constant(parts**2)]))
    alike = (sums**2 == size * squares).reshape(-1, _PARTS).all(axis=1)
    return np.flatnonzero(~alike).tolist()
