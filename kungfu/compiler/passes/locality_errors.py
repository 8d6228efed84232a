"""Errors about locality, in the user's own words: the local variable, its line, and the collective that repairs it."""

from __future__ import annotations

from kungfu.signal import NEST, SCALAR, Signal, Source
from kungfu.signal.source_location import variable_at


def name_clause(signal: Signal) -> str:
    """``, `peers` (policy.py:7),`` as an insertion, or nothing where the user gave this no name."""
    name = _name(signal)
    return f", `{name}` ({signal.origin})," if name else ""


def name_and_type(signal: Signal) -> str:
    """The signal by its name and line where the user gave it a name, and in any case by its type and line."""
    name = _name(signal)
    return f"`{name}` ({signal!r})" if name else repr(signal)


def local_names(signal: Signal) -> str:
    """The sources that make this signal local, each with the user's line that took it."""
    leaves = [one for one in _local_part(signal) if isinstance(one, Source)]
    return "the local " + " and ".join(f"signal {one.source!r} ({one.origin})" for one in leaves)


def remedy_of(signal: Signal) -> str:
    """The collective to insert, around what the user gave a name to, else around the source."""
    part = _local_part(signal)
    leaf = next(one for one in part if isinstance(one, Source))
    counterpart = leaf.kind.agreed_counterpart
    label = _first_named_number(part)
    # A gradient cannot be reduced as it is: it has to become a number first.
    if leaf.type.shape == NEST and not label:
        return f"use training.{counterpart}, or reduce kf.ops.norm_squared({leaf.written}) with kf.ops.all_reduce"
    label = label or leaf.written
    return f'write kf.ops.all_reduce({label}, "mean")' + (f", or use training.{counterpart}" if counterpart else "")


def _local_part(signal: Signal) -> list[Signal]:
    """The local nodes under this signal, from itself down: those that no collective stands above."""
    found: dict[Signal, None] = {}
    stack = [signal]
    while stack:
        node = stack.pop()
        # An agreed node ends the walk: what is below it was made agreed.
        if node not in found and node.placement == "local":
            found[node] = None
            stack.extend(reversed(node.inputs))
    return list(found)


def _first_named_number(part: list[Signal]) -> str:
    """The name of the outermost number that has one; a variable is that of the outermost node of its line."""
    lines: set[str] = set()
    for node in part:
        name = node.name or ("" if node.origin in lines else variable_at(node.origin))
        lines.add(node.origin)
        if name and node.type.shape == SCALAR and node.type.dtype != "bool":
            return name
    return ""


def _name(signal: Signal) -> str:
    return signal.name or variable_at(signal.origin)
