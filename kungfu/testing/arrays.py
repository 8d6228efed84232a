"""Sources as arrays, by step and by peer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from kungfu.errors import UsageError
from kungfu.signal import SOURCES

__all__ = ["steps_of"]

Step = tuple[list[dict[str, Any]], dict[str, Any]]


def steps_of(arrays: Mapping[str, Any], declared: Collection[str] = ()) -> Iterator[Step]:
    """Each step's local sources in rank order, and its agreed ones.

    Agreed sources are sequences with a value a step; local ones have, for each step, one value a peer, or one for all.
    Those of the user's own, by the names that are `declared`, are local. Left out, steps are numbered from 1, nothing
    is pending or was refused, the size is that of the rows, it may grow to the largest of them, and how many samples an
    epoch has is unknown. Raises `UsageError` for sequences that do not fit together.
    """
    steps, own = _steps(arrays), {name for name in arrays if _is_local(name, declared)}
    sizes = [_size(arrays, index, own) for index in range(steps)]
    for index, size in enumerate(sizes):
        unbounded = {"min_size": 1, "max_size": max(sizes), "refused_size": 0, "epoch_samples": 0, "job_samples": 0}
        known = {"step": index + 1, "size": size, **unbounded}
        given = {name: values[index] for name, values in arrays.items() if name not in own}
        local = [{"rank": rank, **_own(arrays, index, own, rank=rank)} for rank in range(size)]
        yield local, {**known, "pending": False, **given}


def _steps(arrays: Mapping[str, Any]) -> int:
    lengths = {name: len(values) for name, values in arrays.items() if isinstance(values, list) or np.ndim(values)}
    if not lengths or len(lengths) < len(arrays) or len(set(lengths.values())) > 1:
        raise UsageError(f"arrays of a trace have one length, that of the steps; these have {lengths or 'none'}")
    return next(iter(lengths.values()))


def _size(arrays: Mapping[str, Any], index: int, own: set[str]) -> int:
    """The peers of a step: as told, else as many as the longest row has."""
    if "size" in arrays:
        return int(arrays["size"][index])
    rows = [len(values[index]) for name, values in arrays.items() if name in own and _is_row(values[index])]
    return max(rows, default=1)


def _own(arrays: Mapping[str, Any], index: int, own: set[str], *, rank: int) -> dict[str, Any]:
    found = {}
    for name in own:
        row = arrays[name][index]
        if _is_row(row) and rank >= len(row):
            raise UsageError(f"{name!r} has {len(row)} values in entry {index}, and that step has more peers")
        found[name] = row[rank] if _is_row(row) else row
    return found


def _is_local(name: str, declared: Collection[str]) -> bool:
    """A source that each peer has for itself, or a reduction of one, as in ``norm_squared(grads)``."""
    if name in SOURCES:
        return SOURCES[name].placement == "local"
    if name in declared:
        return True
    inside = name.partition("(")[2].rstrip(")").split(", ")
    if not inside or any(one not in SOURCES for one in inside):
        others = f", and the policy declares {', '.join(declared)}" if declared else ""
        raise UsageError(f"{name!r} is no source; a step offers {', '.join(sorted(SOURCES))}{others}")
    return any(SOURCES[one].placement == "local" for one in inside)


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or np.ndim(value) > 0
