"""The seconds of a stop as a tree: each peer tells its own, so that the slowest part can be found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["span_of"]


def span_of(seconds: Mapping[str, float], *, total_s: float) -> dict[str, Any]:
    """A stop of ``total_s`` seconds with its parts, in the order in which they were timed.

    A part within another bears its name and a stroke. Parts may overlap: a state travels while the attachment opens.

    >>> span_of({"barrier": 0.02, "barrier/digest": 0.01}, total_s=0.03)
    {'s': 0.03, 'parts': [{'name': 'barrier', 's': 0.02, 'parts': [{'name': 'digest', 's': 0.01}]}]}
    """
    return {"s": round(total_s, 6), **_inside("", seconds)}


def _inside(prefix: str, seconds: Mapping[str, float]) -> dict[str, Any]:
    names = [name for name in seconds if name.startswith(prefix) and "/" not in name[len(prefix) :]]
    parts = [
        {"name": name[len(prefix) :], "s": round(seconds[name], 6), **_inside(f"{name}/", seconds)} for name in names
    ]
    return {"parts": parts} if parts else {}
