"""The state of a training run, by who holds it.

*Shared*: trainable and frozen weights, optimizer slots, progress, agreed folds: equal on all peers, in the digest,
sent to a joiner. *Averaged*: floating statistics that a layer keeps of the data it saw (BatchNorm): local by nature,
averaged at barriers. *Of rank 0*: local likewise, and rank 0's at barriers (`kungfu.training.graph.layer_memory`).
*Own*: the states of seed generators, derived from the job's seed and the peer, else all peers would drop the same
units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.framework_internals import layer_statistics
from kungfu.runtime.api import Buffers, digests, memory_of, sampled, writable_memory_of
from kungfu.training.graph.layer_memory import LayerWord
from kungfu.training.graph.variable_io import read_variable, write_variable


@dataclass(frozen=True)
class StateClasses:
    """Variables by name, in the same order on all peers."""

    shared: Mapping[str, tf.Variable]
    averaged: Mapping[str, tf.Variable]
    own: Mapping[str, tf.Variable]
    of_rank_0: Mapping[str, tf.Variable] = field(default_factory=dict)

    def all(self) -> dict[str, tf.Variable]:
        """Every variable."""
        return {**self.shared, **self.averaged, **self.own, **self.of_rank_0}


def classify(
    model: object,
    optimizers: Sequence[object],
    agreed: Mapping[str, tf.Variable],
    *,
    words: Mapping[int, LayerWord] = MappingProxyType({}),
) -> StateClasses:
    """Sorts the variables of a Keras model and its optimizers.

    Args:
        model: Keras'.
        optimizers: Keras'.
        agreed: kungfu's own shared variables.
        words: The program's declarations about variables of layers, by their ids.
    """
    statistics = {id(weight) for weight in layer_statistics(model)}
    weights = list(model.weights)  # type: ignore[attr-defined]
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]  # type: ignore[attr-defined]
    # What counts is what a layer keeps, what is said of it, and whether it has a mean: a counter of steps is shared.
    floating = [w for w in weights if id(w) in statistics and tf.as_dtype(w.dtype).is_floating]
    averaged = [w for w in floating if words.get(id(w), "mean") == "mean"]
    of_rank_0 = [w for w in weights if words.get(id(w)) == "only_first_replica"]
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
    """The variables by Keras path; equal paths are numbered in Keras' order, that of the user's program."""
    named: dict[str, tf.Variable] = {}
    for variable in variables:
        name = path = f"{prefix}/{getattr(variable, 'path', None) or variable.name}"  # type: ignore[attr-defined]
        count = 1
        while name in named:
            name, count = f"{path}:{count}", count + 1
        named[name] = variable if isinstance(variable, tf.Variable) else variable.value  # type: ignore[attr-defined]
    return named


def plant_seeds(classes: StateClasses, *, seed: int, peer: int, after: int = 0) -> None:
    """Gives every seed generator a state of its own, by the job's seed, the peer and the generator's index; a run that
    is resumed ``after`` this many steps does not draw again what it drew from the start."""
    for place, variable in enumerate(classes.own.values()):
        entropy = [seed, peer, place, after] if after else [seed, peer, place]
        words = np.random.SeedSequence(entropy).generate_state(int(np.prod(variable.shape)))
        variable.assign(tf.cast(tf.reshape(tf.constant(words, tf.uint32), variable.shape), variable.dtype))


class TrainingState:
    """The replicated state in memory: the shared variables, the averaged ones, those of rank 0, what is registered.

    Registered values live in Python, which changes them between two steps. Within a step their mirrors hold them as
    they were before it, if they were read then; so they travel to a joiner, and are in no digest.

    Variables of the CPU are read and overwritten where they are; those of another device by way of a copy here.

    Args:
        classes: The variables by who holds them.
        on_rescaled: Starts those folds again that a rescale resets.
    """

    def __init__(self, classes: StateClasses, *, on_rescaled: Callable[[], None]) -> None:
        self.classes = classes
        self._on_rescaled = on_rescaled
        self._variables = self.agreed()
        with tf.device("/CPU:0"):
            self._registered_before = tf.Variable(0, dtype=tf.int64, trainable=False, name="kungfu/registered_before")

    def carry(self, registered: StateClasses) -> StateClasses:
        """From now on what is registered travels with the state; gives all of it."""
        own = self.classes
        self._variables += [*registered.shared.values(), *registered.averaged.values(), self._registered_before]
        return StateClasses(
            {**own.shared, **registered.shared},
            {**own.averaged, **registered.averaged},
            {**own.own, **registered.own},
            own.of_rank_0,
        )

    def registered_read(self, *, step: int) -> None:
        """Registered values have been read into their mirrors before ``step``."""
        write_variable(self._registered_before, step)

    def registered_before(self) -> int:
        """The step before which the registered values were read that the mirrors hold; 0 if they never were."""
        return int(read_variable(self._registered_before))

    def shared(self) -> list[tf.Variable]:
        """The variables that are equal on all peers between two steps."""
        return list(self.classes.shared.values())

    def agreed(self) -> list[tf.Variable]:
        """The shared variables and layers' statistics: the same on all peers where these have been averaged."""
        classes = self.classes
        return [*classes.shared.values(), *classes.averaged.values(), *classes.of_rank_0.values()]

    def handles(self) -> list[tf.Tensor]:
        """The resource handles of everything that a barrier may write."""
        return [variable.handle for variable in [*self._variables, *self.classes.own.values()]]

    def readable(self) -> Buffers:
        """The memory of all replicated variables, to be read; see ``ReplicatedState``."""
        return memory_of(self._variables)

    def writable(self) -> AbstractContextManager[Buffers]:
        """The memory of all replicated variables, to be written into; see ``ReplicatedState``."""
        return writable_memory_of(self._variables)

    def digest(self) -> dict[str, int]:
        """The checksum of every shared variable: one pass over its memory."""
        return dict(zip(self.classes.shared, digests(self._shared_memory()), strict=True))

    def sampled_digest(self, turn: int) -> dict[str, int]:
        """The checksum of a slice of every shared variable, another one with every turn."""
        return dict(zip(self.classes.shared, digests(sampled(self._shared_memory(), turn)), strict=True))

    def values(self, indices: Sequence[int]) -> list[np.ndarray]:
        """The values of shared variables, by their indices in the digest; see ``ReplicatedState``."""
        return [read_variable(one) for one in self._at(indices)]

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Gives shared variables other values; see ``ReplicatedState``."""
        for variable, value in zip(self._at(list(values)), values.values(), strict=True):
            write_variable(variable, value)

    def _at(self, indices: Sequence[int]) -> list[tf.Variable]:
        shared = self.shared()
        return [shared[index] for index in indices]

    def rescaled(self) -> None:
        """Folds that declare ``reset`` start again; called on every peer of a new view before digests are compared."""
        self._on_rescaled()

    def _shared_memory(self) -> Buffers:
        buffers = self.readable()
        return replace(buffers, table=buffers.table[: len(self.classes.shared)])


_PARTS = 4  # of a digest of 64 bits: the squares of 16 bits each can be summed over many peers without overflow


def differing_variables(
    variables: Sequence[tf.Variable], *, size: int, total: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[int]:
    """The places of those variables that are not bit for bit the same on all of ``size`` peers; agreed.

    Numbers ``x`` of ``n`` peers are all the same exactly where ``n * sum(x**2) == sum(x)**2`` (Cauchy and Schwarz),
    which every peer computes alike from the two sums.

    Args:
        variables: The same ones, in the same order, on all peers.
        size: The peers of the view.
        total: Gives the sums of tensors over the peers.

    Cost:
        A pass over the variables' memory, and a message with 64 bytes for each of them.

    >>> variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    >>> differing_variables(variables, size=2, total=lambda given: [2 * one for one in given])
    []
    """
    # Each checksum of 64 bits as four numbers of 16 bits, whose squares do not overflow when they are summed.
    words = np.array(digests(memory_of(variables)), np.uint64)
    parts = words.view(np.uint16).astype(np.int64)
    sums, squares = (one.numpy() for one in total([tf.constant(parts), tf.constant(parts**2)]))
    alike = (sums**2 == size * squares).reshape(-1, _PARTS).all(axis=1)
    return [int(place) for place in np.flatnonzero(~alike)]
