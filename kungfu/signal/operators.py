"""Python's operators on signals: each makes a map of the operation by that name."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kungfu.signal.node import Signal

    Unary = Callable[["Operators"], Signal]
    Binary = Callable[["Operators", object], Signal]


def _unary(operation: str) -> Unary:
    return lambda self: self._operate(operation, self)


def _binary(operation: str) -> Binary:
    return lambda self, other: self._operate(operation, self, other)


def _reflected(operation: str) -> Binary:
    """With the signal as second operand: the first one is a number, which does not know of signals."""
    return lambda self, other: self._operate(operation, other, self)


class Operators(abc.ABC):
    """The meaning of ``+ - * / // % < <= > >= == != & | ~ abs()``; the type rules are in `kungfu.signal.operation`."""

    __array_ufunc__ = None  # NumPy's numbers leave the operators to us

    @abc.abstractmethod
    def _operate(self, operation: str, *operands: object) -> Signal:
        """The map of this operation, by its name."""

    __add__ = _binary("add")
    __radd__ = _reflected("add")
    __sub__ = _binary("subtract")
    __rsub__ = _reflected("subtract")
    __mul__ = _binary("multiply")
    __rmul__ = _reflected("multiply")
    __truediv__ = _binary("divide")
    __rtruediv__ = _reflected("divide")
    __floordiv__ = _binary("floor_divide")
    __rfloordiv__ = _reflected("floor_divide")
    __mod__ = _binary("modulo")
    __rmod__ = _reflected("modulo")
    __and__ = _binary("and")
    __rand__ = _reflected("and")
    __or__ = _binary("or")
    __ror__ = _reflected("or")
    __lt__ = _binary("less")
    __le__ = _binary("less_equal")
    __gt__ = _binary("greater")
    __ge__ = _binary("greater_equal")
    __getitem__ = _binary("take")
    __neg__ = _unary("negative")
    __abs__ = _unary("abs")
    __invert__ = _unary("not")
    __eq__ = _binary("equal")  # type: ignore[assignment]  # a comparison of signals is a signal
    __ne__ = _binary("not_equal")  # type: ignore[assignment]  # a comparison of signals is a signal
    __hash__ = object.__hash__  # a node is itself; equal nodes are shared by the compiler
