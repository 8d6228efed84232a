"""The seconds of a stop as a tree: each peer tells its own, so that the slowest part can be found."""

from __future__ import annotations

from collections.abc import Mapping

from kungfu.event_log.events import SpanPart

__all__ = ["parts_of"]


def parts_of(seconds: Mapping[str, float], *, within: str = "") -> tuple[SpanPart, ...]:
    """The parts of a stop, in the order in which they were timed; ``within`` is the part that has them.

    The name of a part within another is that of the other, a slash, and its own. Parts may overlap: a state travels
    while the attachment opens.

    >>> [barrier] = parts_of({"barrier": 0.02, "barrier/digest": 0.01})
    >>> barrier.s, barrier.parts
    (0.02, (SpanPart(name='digest', s=0.01, parts=()),))
    """
    prefix = f"{within}/" if within else ""
    names = [name for name in seconds if name.startswith(prefix) and "/" not in name[len(prefix) :]]
    return tuple(
        SpanPart(name=name[len(prefix) :], s=round(seconds[name], 6), parts=parts_of(seconds, within=name))
        for name in names
    )
