"""Python's operators on signals: each makes a map of the operation by that name."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kungfu.signal.node import Signal


class Operators(abc.ABC):
    """The meaning of ``+ - * / // % < <= > >= == != & | ~ abs()``; the type rules are in `kungfu.signal.operation`."""

    __array_ufunc__ = None  # NumPy's numbers leave the operators to us

    @abc.abstractmethod
    def _operate(self, operation: str, *operands: object) -> Signal:
        """The map of this operation, by its name."""

    def __add__(self, other: object) -> Signal:
        return self._operate("add", self, other)

    def __radd__(self, other: object) -> Signal:
        return self._operate("add", other, self)

    def __sub__(self, other: object) -> Signal:
        return self._operate("subtract", self, other)

    def __rsub__(self, other: object) -> Signal:
        return self._operate("subtract", other, self)

    def __mul__(self, other: object) -> Signal:
        return self._operate("multiply", self, other)

    def __rmul__(self, other: object) -> Signal:
        return self._operate("multiply", other, self)

    def __truediv__(self, other: object) -> Signal:
        return self._operate("divide", self, other)

    def __rtruediv__(self, other: object) -> Signal:
        return self._operate("divide", other, self)

    def __floordiv__(self, other: object) -> Signal:
        return self._operate("floor_divide", self, other)

    def __rfloordiv__(self, other: object) -> Signal:
        return self._operate("floor_divide", other, self)

    def __mod__(self, other: object) -> Signal:
        return self._operate("modulo", self, other)

    def __rmod__(self, other: object) -> Signal:
        return self._operate("modulo", other, self)

    def __neg__(self) -> Signal:
        return self._operate("negative", self)

    def __abs__(self) -> Signal:
        return self._operate("abs", self)

    def __lt__(self, other: object) -> Signal:
        return self._operate("less", self, other)

    def __le__(self, other: object) -> Signal:
        return self._operate("less_equal", self, other)

    def __gt__(self, other: object) -> Signal:
        return self._operate("greater", self, other)

    def __ge__(self, other: object) -> Signal:
        return self._operate("greater_equal", self, other)

    def __eq__(self, other: object) -> Signal:  # type: ignore[override]  # a comparison of signals is a signal
        return self._operate("equal", self, other)

    def __ne__(self, other: object) -> Signal:  # type: ignore[override]  # a comparison of signals is a signal
        return self._operate("not_equal", self, other)

    def __and__(self, other: object) -> Signal:
        return self._operate("and", self, other)

    def __rand__(self, other: object) -> Signal:
        return self._operate("and", other, self)

    def __or__(self, other: object) -> Signal:
        return self._operate("or", self, other)

    def __ror__(self, other: object) -> Signal:
        return self._operate("or", other, self)

    def __getitem__(self, index: object) -> Signal:
        return self._operate("take", self, index)

    def __invert__(self) -> Signal:
        return self._operate("not", self)

    __hash__ = object.__hash__  # a node is itself; equal nodes are shared by the compiler
