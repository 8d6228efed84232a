"""Replay: a plan run for a whole cluster at once, without TensorFlow.

The plan is assembled once into bytecode, which the native library runs for all peers, as the fused op does in training.
Without a compiler, the NumPy backend evaluates the plan in every step, peer by peer; a backend given by the caller does
so too. This is slower, and serves as the reference for the compiled paths. In the NumPy backend, a value is a tuple
with one array per peer, each computed separately, and a message is summed in rank order in float32, as in a job.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from kungfu import native
from kungfu.compiler.assembler import whole_step
from kungfu.compiler.compiled_policies import CompiledPolicies, MessageLayout, Outcome
from kungfu.compiler.evaluate import Backend, Evaluation, conclude, prepare, reduce_gradients
from kungfu.errors import InternalError, UsageError
from kungfu.signal import SOURCES, Fold, Source
from kungfu.signal.operation import DType, Operation, SignalType
from kungfu.signal.sources import SourceKind

PerPeer = tuple[Any, ...]
BackendFactory = Callable[[Mapping[str, PerPeer], int], Backend]
Local = Sequence[Mapping[str, Any]]  # the local sources of each peer
States = Mapping[Fold, tuple[PerPeer, ...]]
_WORD_BYTES = 8
_MESSAGE_BYTES = 200


class Replay:
    """Runs a plan step by step for a whole cluster, with recorded or invented values of the plan's sources.

    Args:
        size: The number of peers at the start.
        backend: Creates a step's backend from the step's sources and the size; by default, the native library is used.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import schedule
    >>> replay = Replay(compile_policies([schedule({2: 3})]), size=2)
    >>> cluster = {"min_size": 1, "max_size": 4, "refused_size": 0, "pending": False}
    >>> [float(replay.step([{}, {}], {**cluster, "step": step}).targets[0]) for step in (1, 2)]
    [nan, 3.0]
    """

    def __init__(self, plan: CompiledPolicies, *, size: int, backend: BackendFactory | None = None):
        self._program: NativeProgram | None = None
        with suppress(UsageError):  # there is no compiler
            self._program = None if backend else NativeProgram(plan)
        self._backend = backend or NumpyBackend
        self.plan = plan
        self.size, self.view = size, 1
        # Each of these properties walks over the plan, and every step needs all of them.
        self._folds = plan.folds
        # Gathers need the rank and the size, even if the plan reads neither.
        self._kinds = {"rank": SOURCES["rank"], "size": SOURCES["size"], **plan.source_kinds}
        self._reductions = plan.gradient_reductions
        # The states: tuples with each peer's value, words of the native program, or both.
        self._states: States | None = {fold: _starts(fold, peers=size) for fold in self._folds}
        self._words: Any | None = None

    @property
    def states(self) -> States:
        """The states of the folds: for each field of each fold's state a tuple with one array per peer."""
        if self._states is None and self._program is not None:
            fields = self._program.fields(self._words)
            self._states = {fold: tuple(next(fields) for _ in fold.recurrence.init) for fold in self._folds}
        return self._states or {}

    @states.setter
    def states(self, states: States) -> None:
        self._states, self._words = states, None

    def step(self, local: Local, agreed: Mapping[str, Any]) -> Outcome:
        """The outcome of one step, equal on every peer of the cluster.

        Args:
            local: The local sources of each peer, in rank order.
            agreed: The sources that are equal on all peers. `size` and `view` may be omitted; `mean_grads`,
                `mean_loss`, `total_samples` and `local_batch_size` are computed if the plan needs them and they are
                not given.

        Raises:
            UsageError: A source is missing, or `local` has another number of peers than the cluster.
        """
        if len(local) != self.size:
            raise UsageError(f"a cluster of {self.size} peers got local sources of {len(local)}; call rescale first")
        sources = {name: self._source(name, local, agreed) for name in self._kinds}
        given = {name: one for name in self._reductions if (one := self._reduction(name, local, agreed))}
        if self._program is None:
            return self._evaluated(self._backend({**sources, **given}, self.size))
        reduced = {name: self._reduced(name, sources) for name in self._reductions if name not in given}
        if self._words is None:
            fields = [values for fold in self._folds for values in self.states[fold]]
            self._words = self._program.words(fields, size=self.size)
        outcome = self._program.step({**sources, **given, **reduced}, self._words, size=self.size)
        self._states = None
        return outcome

    def _evaluated(self, backend: Backend) -> Outcome:
        with np.errstate(all="ignore"):
            piggybacked = prepare(self.plan, Evaluation(backend, self.states))
            evaluation = Evaluation(backend, self.states)
            outcome = conclude(self.plan, evaluation, summed=backend.exchanged(piggybacked, "piggybacked"))
        self.states = {fold: evaluation.renewed[fold] for fold in self.states}
        return outcome

    def rescale(self, size: int, *, stayed: Sequence[int] | None = None) -> None:
        """Changes the size of the cluster: new peers get the ranks after those of the peers that stay.

        Args:
            stayed: The previous ranks of the peers that stay; by default the last peers leave.

        On rescale:
            Folds declared with "reset" start again. Joiners receive the states of all other folds that are equal on all
            peers, and begin with the initial states of folds that differ between peers.
        """
        stayed = range(min(self.size, size)) if stayed is None else stayed
        self.states = {fold: _rescaled(fold, state, stayed, size=size) for fold, state in self.states.items()}
        self.size, self.view = size, self.view + 1

    def _source(self, name: str, local: Local, agreed: Mapping[str, Any]) -> PerPeer:
        kind = self._kinds[name]
        if kind.placement == "local":
            if all(name in one for one in local):
                return tuple(one[name] for one in local)
            if name == "rank":
                return tuple(one.get(name, rank) for rank, one in enumerate(local))
            # Invented steps may omit the joiners: during a change, joiners may be on every host.
            # A step without micro-batches.
            if name == "micro_batches" and all("samples" in one for one in local):
                return tuple(int(one["samples"] > 0) for one in local)
            if name == "micro_batch_variance":
                return (np.nan,) * self.size
            if name == "host_joiners" and "pending" in agreed:
                return (int(agreed["pending"]),) * self.size
            return _absent(kind, f"the local source {name!r}, and it was not given for every peer", peers=self.size)
        # The gradients may be absent as long as recorded reductions replace them.
        if name == "mean_grads" and name not in agreed and any("grads" not in one for one in local):
            return _absent(kind, f"{name!r}: give it, or 'grads' to compute it from", peers=self.size)
        known = {"size": self.size, "view": self.view, **agreed}
        return (known[name] if name in known else _derived(name, local, known),) * self.size

    def _reduction(self, name: str, local: Local, agreed: Mapping[str, Any]) -> PerPeer | None:
        """The values of a gradient reduction, if the caller gave these instead of the gradients; else ``None``."""
        if self._reductions[name].placement == "agreed":
            return (np.float32(agreed[name]),) * self.size if name in agreed else None
        return tuple(np.float32(one[name]) for one in local) if all(name in one for one in local) else None

    def _reduced(self, name: str, sources: Mapping[str, PerPeer]) -> PerPeer:
        """The values of a gradient reduction, from the gradients; minus infinity if the step does not need them."""
        one = self._reductions[name]
        # Agreed values are computed once for all peers.
        peers = 1 if one.placement == "agreed" else self.size
        known = NumpyBackend({source: values[:peers] for source, values in sources.items()}, peers)
        with np.errstate(all="ignore"):
            found: PerPeer = reduce_gradients(one, Evaluation(known, {}))
        return found * (self.size // peers)


def _rescaled(fold: Fold, state: tuple[PerPeer, ...], stayed: Sequence[int], *, size: int) -> tuple[PerPeer, ...]:
    fresh = _starts(fold, peers=size)
    if fold.on_rescale == "reset":
        return fresh
    # Joiners receive agreed states from rank 0.
    if fold.placement == "agreed":
        return tuple((field[stayed[0]],) * size for field in state)
    # Peers keep their local states, and joiners begin with fresh ones.
    kept = [tuple(field[rank] for rank in stayed) for field in state]
    return tuple((*old, *new[len(old) :]) for old, new in zip(kept, fresh, strict=True))


def _absent(kind: SourceKind, message: str, *, peers: int) -> PerPeer:
    text = f"the plan reads {message}"
    if kind.type.shape != ("nest",):
        raise UsageError(text)
    return (Absent(text),) * peers


def _starts(fold: Fold, *, peers: int) -> tuple[PerPeer, ...]:
    types = [one.type for one in fold.recurrence.updates]
    fields = zip(fold.recurrence.init, types, strict=True)
    return tuple((np.full(type.extents(peers), init, type.dtype),) * peers for init, type in fields)


def _derived(name: str, local: Local, known: Mapping[str, Any]) -> Any:
    """The value of a source that is equal on all peers, computed from the values of other sources."""
    if name not in _FORMULAS:
        raise UsageError(f"the plan reads the agreed source {name!r}, and it was not given")
    try:
        # The mean of infinite losses is NaN, without a warning.
        with np.errstate(all="ignore"):
            return _FORMULAS[name](local, known)
    except KeyError as error:
        raise UsageError(f"the plan reads {name!r}: give it, or {error.args[0]!r} to compute it from") from error


_FORMULAS: Mapping[str, Callable[[Local, Mapping[str, Any]], Any]] = {
    "local_batch_size": lambda _, known: np.float32(known["global_batch_size"]) / np.float32(known["size"]),
    "total_samples": lambda local, _: reduce(np.add, [np.float32(one["samples"]) for one in local]),
    "mean_loss": lambda local, _: _weighted([one["loss"] for one in local], local),
    "mean_grads": lambda local, _: [
        _weighted(leaves, local) for leaves in zip(*(one["grads"] for one in local), strict=True)
    ],
    # Invented steps may omit the kind of a pending change: then all rules wait for the change.
    **dict.fromkeys(("barrier_due", "change_due", "replacing"), lambda _, known: known["pending"]),
    "replacement_refused": lambda local, known: False,
    "requested_rate": lambda local, known: np.float32(0.0),
    **dict.fromkeys(("replaced_peers", "target_size"), lambda local, known: np.int64(0)),
}


def _weighted(values: Sequence[Any], local: Local) -> Any:
    """The mean of the peers' values, weighted by samples and summed by rank; a peer without samples is ignored."""
    weights = [np.float32(one["samples"]) for one in local]
    total = reduce(np.add, weights)
    shares = [np.asarray(v, np.float32) * (w / total) for v, w in zip(values, weights, strict=True) if w > 0]
    return reduce(np.add, shares) if shares else np.float32(np.nan)


# ---- the native library ----------------------------------------------------------------------------------------------


class NativeProgram:
    """The bytecode of a plan in the native library. A number of any type is stored in one *word* of 8 bytes.

    Raises ``UsageError`` if there is no compiler, and no previously built library."""

    def __init__(self, plan: CompiledPolicies) -> None:
        bytecode = whole_step(plan)
        self._functions = native.load_state()
        wrong = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self._opened = self._functions.kungfu_bytecode_open(bytecode.text.encode(), wrong, _MESSAGE_BYTES)
        if self._opened is None:
            raise InternalError(wrong.value.decode())
        weakref.finalize(self, self._functions.kungfu_bytecode_close, self._opened)
        self._inputs, self._results = bytecode.inputs, bytecode.results
        self._states: list[SignalType] = [one.type for fold in plan.folds for one in fold.recurrence.updates]
        self._lengths = np.array([one.shape[0] if one.shape else -1 for one in self._states], np.int64)
        self._entries = np.zeros(len(self._results), np.int64)

    def step(self, sources: Mapping[str, PerPeer], states: Any, *, size: int) -> Outcome:
        """Runs one step of a cluster, from each peer's sources and gradient reductions.

        ``states`` contains the folds' states in words of 8 bytes, with one row per peer, and is updated in place."""
        inputs = self._loaded(sources, size)
        addresses = (one.ctypes.data for one in (inputs, self._lengths, states, self._entries))
        found = self._functions.kungfu_bytecode_run(self._opened, size, *addresses)
        if not found:
            raise UsageError(f"a step of {size} peers needs more memory than there is: a number of the record is wrong")
        given = np.frombuffer(ctypes.string_at(found, int(self._entries.sum()) * _WORD_BYTES), np.int64)
        outcome = Outcome(*_vectors(given, self._results, self._entries.tolist()))
        return outcome._replace(masks=outcome.masks.reshape(-1, size), fractions=outcome.fractions.reshape(-1, size))

    def words(self, fields: Sequence[PerPeer], *, size: int) -> Any:
        """The states of the folds, stored in words of 8 bytes, with one row per peer."""
        lengths = np.abs(self._lengths)
        words = np.zeros((size, lengths.sum()), np.int64)
        columns = np.split(words, np.cumsum(lengths)[:-1], axis=1) if fields else []
        for column, field, type in zip(columns, fields, self._states, strict=True):
            _numbers(column, type.dtype)[...] = np.reshape(field, column.shape)
        return words

    def fields(self, words: Any) -> Iterator[PerPeer]:
        """Decodes the accumulators of all folds from 32-bit words: yields for each field one array per peer."""
        at = 0
        for type, length in zip(self._states, np.abs(self._lengths).tolist(), strict=True):
            found = _numbers(words[:, at : at + length], type.dtype).copy()
            yield tuple(found if type.shape else found[:, 0])
            at += length

    def _loaded(self, sources: Mapping[str, PerPeer], size: int) -> Any:
        words = np.zeros((size, len(self._inputs)), np.int64)
        for index, (name, dtype) in enumerate(self._inputs.items()):
            column, values = _numbers(words[:, index : index + 1], dtype)[:, 0], sources[name]
            with np.errstate(all="ignore"):
                try:
                    column[:] = values
                except (ValueError, OverflowError, TypeError):
                    # The dtype cannot represent a number: cast it.
                    column[:] = [np.asarray(one).astype(dtype) for one in values]
        return words


def _numbers(words: Any, dtype: DType) -> Any:
    """A view of the numbers of one type that are stored in words, one number per word of 8 bytes."""
    kind = np.dtype(dtype)
    return words.view(kind)[..., :: _WORD_BYTES // kind.itemsize]


def _vectors(words: Any, dtypes: Sequence[DType], entries: Sequence[int]) -> Iterator[Any]:
    at = 0
    for dtype, count in zip(dtypes, entries, strict=True):
        yield _numbers(words[at : at + count], dtype)
        at += count


# ---- NumPy -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Absent:
    """A placeholder for missing gradients, with the error to raise if the plan needs them."""

    message: str


@dataclass(frozen=True)
class NumpyBackend:
    """Computes with one array per peer; see `kungfu.compiler.evaluate.Backend`."""

    sources: Mapping[str, PerPeer]
    size: int

    def source(self, source: Source) -> PerPeer:
        values = self.sources[source.source]
        return values if source.type.shape == ("nest",) else self.cast(values, source.type.dtype)

    def given(self, name: str) -> PerPeer | None:
        return self.sources.get(name)

    def constant(self, value: bool | int | float, dtype: DType) -> PerPeer:
        return (np.asarray(value, dtype),) * self.size

    def cast(self, value: PerPeer, dtype: DType) -> PerPeer:
        return tuple(np.asarray(one).astype(dtype) for one in value)

    def apply(self, operation: Operation, operands: Sequence[PerPeer], dtypes: Sequence[DType]) -> PerPeer:
        given = zip(*operands, strict=True)
        return tuple(operation.numpy(*map(_operand, one, dtypes)) for one in given)

    def branch(
        self, on: PerPeer, then: Callable[[], list[PerPeer]], otherwise: Callable[[], list[PerPeer]]
    ) -> list[PerPeer]:
        return then() if on[0] else otherwise()

    def packed(self, scalars: Sequence[PerPeer], vectors: Sequence[PerPeer]) -> PerPeer:
        return tuple(
            np.concatenate([[one[peer] for one in scalars], *(one[peer] for one in vectors)]).astype(np.float32)
            for peer in range(self.size)
        )

    def unpacked(self, message: PerPeer, layout: MessageLayout) -> list[PerPeer]:
        first = len(layout.scalars)
        starts = [first + index * self.size for index in range(len(layout.vectors))]
        singles = [tuple(one[i] for one in message) for i in range(first)]
        return singles + [tuple(one[at : at + self.size] for one in message) for at in starts]

    def exchanged(self, message: PerPeer, tag: str) -> PerPeer:
        return (reduce(np.add, message),) * self.size

    def stacked(self, values: Sequence[PerPeer], of: SignalType) -> Any:
        """The values on rank 0, stacked; all peers have the same values."""
        return np.asarray([one[0] for one in values], of.dtype).reshape(-1, *of.extents(self.size))


def _operand(value: Any, dtype: DType) -> Any:
    if isinstance(value, Absent):
        raise UsageError(value.message)
    return value if isinstance(value, list) else np.asarray(value).astype(dtype)
