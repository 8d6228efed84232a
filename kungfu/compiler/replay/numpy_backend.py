"""NumPy as a backend: every value is a tuple with one array per peer, each computed separately.

A message is added up in rank order in float32, as the attachments do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from kungfu.compiler.compiled_policies import MessageLayout
from kungfu.errors import UsageError
from kungfu.signal import Source
from kungfu.signal.operation import DType, Operation, SignalType

PerPeer = tuple[Any, ...]


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
        """The values of rank 0."""
        return np.asarray([one[0] for one in values], of.dtype).reshape(-1, *of.extents(self.size))


def _operand(value: Any, dtype: DType) -> Any:
    if isinstance(value, Absent):
        raise UsageError(value.message)
    return value if isinstance(value, list) else np.asarray(value).astype(dtype)
