"""A replay under watch: its messages, and how near its numbers come to where two interpreters may part.

Both interpreters compute in float32, but TensorFlow may reorder a sum or merge two constants, and its transcendental
functions differ from NumPy's in the last bits. Where a comparison is decided by less than that, or a number has no
exact form, they may rightly decide differently; such a step is called fragile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from kungfu.compiler.replay import NumpyBackend
from kungfu.signal import Operation
from kungfu.signal.operation import DType

MARGIN = 1e-4
_COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
_STEPS = {"floor", "ceil", "to_int64"}
_JUMPING = _COMPARISONS | _STEPS | {"round", "argmin", "argmax"}

Grid = Literal["dyadic", "real"]


@dataclass
class Log:
    """What one step of a replay did: by tag, every peer's vector and their sum; and whether it is fragile."""

    grid: Grid
    messages: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    fragile: bool = False

    def begin(self) -> None:
        """Forgets the step before."""
        self.messages.clear()
        self.fragile = False


class Witness:
    """A NumPy backend that tells a log what it does; see `kungfu.compiler.evaluate.Backend`."""

    def __init__(self, log: Log, sources: Mapping[str, Any], size: int) -> None:
        self._log, self._cluster = log, NumpyBackend(sources, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def exchanged(self, message: Any, tag: str) -> Any:
        summed = self._cluster.exchanged(message, tag)
        self._log.messages[tag] = (message, summed[0])
        return summed

    def apply(self, operation: Operation, operands: Sequence[Any], dtypes: Sequence[DType]) -> Any:
        result = self._cluster.apply(operation, operands, dtypes)
        if self._log.grid == "dyadic":
            self._log.fragile |= not all(_is_dyadic(one) for one in result)
        elif operation.name in _JUMPING and dtypes[0] == "float32":
            given = zip(*operands, strict=True)
            self._log.fragile |= any(_margin(operation.name, [*map(np.asarray, one)]) < MARGIN for one in given)
        return result


def _is_dyadic(value: Any) -> bool:
    """Whether a number is a small multiple of 2**-9, so that sums and constants may be taken in any order."""
    value = np.asarray(value)
    if value.dtype != np.float32:
        return True
    return bool(np.all(_on_grid(value[np.isfinite(value)])))


def _on_grid(value: Any) -> Any:
    scaled = value.astype(np.float64) * 2**9
    return (scaled == np.rint(scaled)) & (np.abs(scaled) <= 2**23)


def _margin(name: str, operands: Sequence[Any]) -> float:
    """How far the operands of a map are from where it jumps, relative to their size where that is above 1."""
    first = operands[0]
    if name in _COMPARISONS:
        other = operands[1].astype(np.float32)
        # Equal numbers of few digits are equal for both interpreters: what rounded them has shown its own margin.
        return _least((first - other)[~((first == other) & _on_grid(first))], of=operands)
    if name == "round":
        return _least(first - np.floor(first) - np.float32(0.5), of=operands)
    if name in _STEPS:
        return _least((first - np.rint(first))[first != np.rint(first)], of=operands)
    return _least(np.diff(np.sort(first[np.isfinite(first)])), of=operands)


def _least(gaps: Any, *, of: Sequence[Any]) -> float:
    sizes = [np.max(np.abs(one[np.isfinite(one)]), initial=1.0) for one in map(np.atleast_1d, of)]
    gaps = np.atleast_1d(gaps)
    return float(np.min(np.abs(gaps[np.isfinite(gaps)]), initial=np.inf)) / float(max(sizes))
