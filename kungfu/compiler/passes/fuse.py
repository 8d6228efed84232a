"""Fuse: collectives that are ready at the same time share one message."""

from __future__ import annotations

from collections.abc import Iterable

from kungfu.compiler.plan import MessageLayout
from kungfu.signal import Collective
from kungfu.signal.operation import SCALAR

__all__ = ["fuse"]


def fuse(collectives: Iterable[Collective]) -> MessageLayout:
    """The layout of one message for all of these: one float a scalar, `size` floats a vector or a gathered scalar.

    A mean travels as a sum, a gathered scalar as a vector of zeros with the peer's own entry; so one sum serves all.
    """
    every = tuple(collectives)
    scalars = tuple(one for one in every if one.type.shape == SCALAR)
    vectors = tuple(one for one in every if one.type.shape != SCALAR)
    return MessageLayout(scalars, vectors)
