"""Replay: the plan in NumPy, for a whole cluster at once; the oracle of the TensorFlow program.

Every value is a tuple with one array a peer. A message is added up in rank order in float32, as the attachments do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from kungfu.compiler.evaluate import Backend, Evaluation, conclude, prepare
from kungfu.compiler.plan import MessageLayout, Outcome, Plan
from kungfu.errors import UsageError
from kungfu.signal import Fold, Source
from kungfu.signal.operation import DType, Operation, SignalType
from kungfu.signal.sources import SourceKind

__all__ = ["Replay"]

PerPeer = tuple[Any, ...]
BackendFactory = Callable[[Mapping[str, PerPeer], int], Backend]
Local = Sequence[Mapping[str, Any]]  # one peer's local sources after the other


class Replay:
    """A plan run step by step over recorded or invented sources of a whole cluster.

    Args:
        plan: The plan.
        size: Peers in the cluster at first.
        backend: Makes what computes a step from its sources and the size; NumPy without it.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import schedule
    >>> replay = Replay(compile_policies([schedule({2: 3})]), size=2)
    >>> cluster = {"min_size": 1, "max_size": 4, "refused_size": 0, "pending": False}
    >>> [float(replay.step([{}, {}], {**cluster, "step": step}).targets[0]) for step in (1, 2)]
    [nan, 3.0]
    """

    def __init__(
        self, plan: Plan, *, size: int, backend: Callable[[Mapping[str, PerPeer], int], Backend] | None = None
    ):
        self._backend = backend or NumpyBackend
        self.plan = plan
        self.size, self.view = size, 1
        self.states = {fold: _starts(fold, peers=size) for fold in plan.folds}

    def step(self, local: Local, agreed: Mapping[str, Any]) -> Outcome:
        """The outcome of one step, as every peer of the cluster would come to it.

        Args:
            local: The local sources of each peer, in rank order.
            agreed: The agreed sources. `size` and `view` are known; `mean_grads`, `mean_loss`, `total_samples` and
                `local_batch_size` are computed where the plan needs them and they are not given.

        Raises:
            UsageError: A source is missing, or `local` is of another number of peers.
        """
        if len(local) != self.size:
            raise UsageError(f"a cluster of {self.size} peers got local sources of {len(local)}; call rescale first")
        sources = {name: self._source(name, local, agreed) for name in sorted(self.plan.sources)}
        sources |= {
            name: one for name in self.plan.gradient_reductions if (one := self._reduction(name, local, agreed))
        }
        backend = self._backend(sources, self.size)
        with np.errstate(all="ignore"):
            piggybacked = prepare(self.plan, Evaluation(backend, self.states))
            evaluation = Evaluation(backend, self.states)
            outcome = conclude(self.plan, evaluation, summed=backend.exchanged(piggybacked, "piggybacked"))
        self.states = {fold: evaluation.renewed[fold] for fold in self.states}
        return outcome

    def rescale(self, size: int) -> None:
        """Changes the size of the cluster: the last peers leave, or new ones join after the others.

        On rescale:
            Folds that declared so start again; the other agreed folds travel to joiners, and local folds start there.
        """
        self.states = {fold: self._rescaled(fold, size=size) for fold in self.states}
        self.size, self.view = size, self.view + 1

    def _rescaled(self, fold: Fold, *, size: int) -> tuple[PerPeer, ...]:
        fresh = _starts(fold, peers=size)
        if fold.on_rescale == "reset":
            return fresh
        # An agreed state is rank 0's, and joiners receive it.
        if fold.placement == "agreed":
            return tuple((field[0],) * size for field in self.states[fold])
        # A local state stays with its peer, and starts on a joiner.
        return tuple((*old, *new[len(old) :])[:size] for old, new in zip(self.states[fold], fresh, strict=True))

    def _source(self, name: str, local: Local, agreed: Mapping[str, Any]) -> PerPeer:
        # Each peer has to tell its own value.
        kind = self.plan.source_kinds[name]
        if kind.placement == "local":
            own = [{"rank": rank, **one} for rank, one in enumerate(local)]
            if any(name not in one for one in own):
                return _absent(kind, f"the local source {name!r}, and it was not given for every peer", peers=self.size)
            return tuple(one[name] for one in own)
        # The gradients may be absent as long as recorded reductions stand for them.
        if name == "mean_grads" and name not in agreed and any("grads" not in one for one in local):
            return _absent(kind, f"{name!r}: give it, or 'grads' to compute it from", peers=self.size)
        known = {"size": self.size, "view": self.view, **agreed}
        return ((known[name] if name in known else _derived(name, local, known)),) * self.size

    def _reduction(self, name: str, local: Local, agreed: Mapping[str, Any]) -> PerPeer | None:
        """A gradient reduction that is given in place of the gradients."""
        if self.plan.gradient_reductions[name].placement == "agreed":
            return (np.float32(agreed[name]),) * self.size if name in agreed else None
        return tuple(np.float32(one[name]) for one in local) if all(name in one for one in local) else None


@dataclass(frozen=True)
class _Absent:
    """Stands for gradients that were not given: an error only where the plan does need them."""

    message: str


def _absent(kind: SourceKind, message: str, *, peers: int) -> PerPeer:
    text = f"the plan reads {message}"
    if kind.type.shape != ("nest",):
        raise UsageError(text)
    return (_Absent(text),) * peers


def _starts(fold: Fold, *, peers: int) -> tuple[PerPeer, ...]:
    types = [one.type for one in fold.recurrence.updates]
    fields = zip(fold.recurrence.init, types, strict=True)
    return tuple((np.full(type.extents(peers), init, type.dtype),) * peers for init, type in fields)


def _derived(name: str, local: Local, known: Mapping[str, Any]) -> Any:
    """An agreed source that follows from others."""
    if name not in _FORMULAS:
        raise UsageError(f"the plan reads the agreed source {name!r}, and it was not given")
    try:
        return _FORMULAS[name](local, known)
    except KeyError as error:
        raise UsageError(f"the plan reads {name!r}: give it, or {error.args[0]!r} to compute it from") from error


def _local_batch_size(_: Local, known: Mapping[str, Any]) -> Any:
    return np.float32(known["global_batch_size"]) / np.float32(known["size"])


def _total_samples(local: Local, _: Mapping[str, Any]) -> Any:
    return reduce(np.add, [np.float32(one["samples"]) for one in local])


def _mean_loss(local: Local, _: Mapping[str, Any]) -> Any:
    return _weighted([one["loss"] for one in local], local)


def _mean_grads(local: Local, _: Mapping[str, Any]) -> Any:
    return [_weighted(leaves, local) for leaves in zip(*(one["grads"] for one in local), strict=True)]


_FORMULAS: Mapping[str, Callable[[Local, Mapping[str, Any]], Any]] = {
    "local_batch_size": _local_batch_size,
    "total_samples": _total_samples,
    "mean_loss": _mean_loss,
    "mean_grads": _mean_grads,
}


def _weighted(values: Sequence[Any], local: Local) -> Any:
    """The mean over samples, in rank order; a peer without samples has no say, whatever its value."""
    weights = [np.float32(one["samples"]) for one in local]
    total = reduce(np.add, weights)
    shares = [np.asarray(v, np.float32) * (w / total) for v, w in zip(values, weights, strict=True) if w > 0]
    return reduce(np.add, shares) if shares else np.float32(np.nan)


@dataclass(frozen=True)
class NumpyBackend:
    """Computes with one array a peer; see `kungfu.compiler.evaluate.Backend`."""

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

    def all_finite(self, value: PerPeer) -> PerPeer:
        return tuple(np.all(np.isfinite(one)) for one in value)

    def blank(self, type: SignalType) -> PerPeer:
        return (np.full(type.extents(self.size), np.nan if type.dtype == "float32" else 0, type.dtype),) * self.size

    def branch(
        self, on: PerPeer, then: Callable[[], list[PerPeer]], otherwise: Callable[[], list[PerPeer]]
    ) -> list[PerPeer]:
        return then() if on[0] else otherwise()

    def scattered(self, value: PerPeer) -> PerPeer:
        return tuple(_entry(one, rank=rank, size=self.size) for rank, one in enumerate(value))

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

    def averaged(self, value: PerPeer) -> PerPeer:
        return tuple(one / np.float32(self.size) for one in value)

    def exchanged(self, message: PerPeer, tag: str) -> PerPeer:
        return (reduce(np.add, message),) * self.size

    def stacked(self, values: Sequence[PerPeer], dtype: DType) -> Any:
        """The values as rank 0 has them."""
        return np.asarray([one[0] for one in values], dtype)

    def rows(self, vectors: Sequence[PerPeer]) -> Any:
        return np.stack([one[0] for one in vectors]) if vectors else np.zeros((0, self.size), np.bool_)


def _operand(value: Any, dtype: DType) -> Any:
    if isinstance(value, _Absent):
        raise UsageError(value.message)
    return value if isinstance(value, list) else np.asarray(value).astype(dtype)


def _entry(value: Any, *, rank: int, size: int) -> Any:
    vector = np.zeros(size, np.float32)
    vector[rank] = value
    return vector
