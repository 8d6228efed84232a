"""The type of a signal: a dtype, and a shape out of three kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DType = Literal["bool", "int64", "float32"]
Shape = tuple[str | int, ...]
SCALAR: Shape = ()
VECTOR: Shape = ("size",)  # one entry per peer, in rank order; a fixed number of entries is (number,)
NEST: Shape = ("nest",)  # the gradients: a list of tensors, one a variable


@dataclass(frozen=True)
class SignalType:
    """The dtype and shape of a signal: a scalar, a vector (of one entry per peer, or of this many), or the
    gradients."""

    dtype: DType
    shape: Shape = SCALAR

    def extents(self, size: int) -> tuple[int, ...]:
        """The number of entries along each axis in a cluster of `size` peers; the gradients have none."""
        return tuple(size if one == "size" else int(one) for one in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape else self.dtype
