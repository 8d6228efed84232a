"""Fuse: collectives that are ready at the same time share one message."""

from __future__ import annotations

from collections.abc import Iterable

from kungfu.compiler.plan import MessageLayout
from kungfu.signal import Collective
from kungfu.signal.operation import SCALAR


def fuse(collectives: Iterable[Collective]) -> MessageLayout:
    """The layout of one message for all of these: one float per scalar, `size` floats per vector or gathered scalar.

    A mean travels as a sum, and a gathered scalar as a vector of zeros with the peer's own entry, so that one sum over
    the peers serves all of them.

    Args:
        collectives: Collectives whose operands are known at the same time, in an order that all peers have alike.

    Cost:
        One message, of as many floats as the layout has.
    """
    every = tuple(collectives)
    scalars = tuple(one for one in every if one.type.shape == SCALAR)
    vectors = tuple(one for one in every if one.type.shape != SCALAR)
    return MessageLayout(scalars, vectors)
