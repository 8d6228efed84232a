"""Gates: conditions, identical on every peer, that decide if a part of the graph runs in a step."""

from __future__ import annotations

from kungfu.errors import PolicyError
from kungfu.signal.node import Constant, Map, Signal, Source
from kungfu.signal.operation import SignalType
from kungfu.signal.whole_number import is_whole_number


def every_steps(every: int) -> Signal:
    """The gate that is on in every n-th step: ``step % every == 0``."""
    if not is_whole_number(every, least=1):
        raise PolicyError(f"every {every!r} steps: the period must be a whole number of at least 1, e.g. 50")
    return Constant(True) if every == 1 else Source("step") % every == 0


def period_of(gate: Signal) -> int:
    """The period of a gate.

    Returns:
        The minimum number of steps between two steps in which the gate is on: the longest period of the
        `every_steps` conditions that are joined by ``&``; 1 if there are none.

    >>> period_of(every_steps(50)), period_of(every_steps(50) & (Source("size") > 2)), period_of(Source("size") > 2)
    (50, 50, 1)
    """
    if not isinstance(gate, Map):
        return 1
    if gate.operation.name == "and":
        return max(map(period_of, gate.operands))
    # The form of a gate that `every_steps` makes.
    remainder = gate.operands[0]
    if gate.operation.name != "equal" or not isinstance(remainder, Map) or remainder.operation.name != "modulo":
        return 1
    source, period = remainder.operands
    if not isinstance(source, Source) or source.source != "step" or not isinstance(period, Constant):
        return 1
    return abs(int(period.value))


def is_every_steps(gate: Signal) -> bool:
    """True if the gate is exactly ``step % n == 0`` for some n above 1, so that the steps in which it is on are known.

    >>> is_every_steps(every_steps(50)), is_every_steps(every_steps(50) & (Source("size") > 2))
    (True, False)
    >>> is_every_steps(Source("step") % 50 == 7)
    False
    """
    if not isinstance(gate, Map) or gate.operation.name != "equal" or period_of(gate) == 1:
        return False
    remainder = gate.operands[1]
    return isinstance(remainder, Constant) and remainder.value == 0


def is_gate(signal: Signal) -> bool:
    """True if this signal is an exact truth value, so that it may decide if a message is sent."""
    return signal.type == SignalType("bool") and is_exact(signal)


def is_exact(signal: Signal) -> bool:
    """True if this signal is a function of step and size in whole numbers, hence bit-identical on all peers.

    Agreed numbers are equal on all peers, but float32 results computed from these may differ in the last bit between
    processors, and a peer that skips a message would leave the others waiting. A truth value that a message carried
    from rank 0 is exact again.

    Args:
        signal: The condition of a gate, or a part of it.
    """
    return signal.exact
