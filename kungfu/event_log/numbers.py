"""Numbers in the job's record. JSON lacks NaN and infinity, so files contain their names; ``null`` means unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NOT_FINITE: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def as_json(value: Any, *, nan: str | None = "NaN") -> Any:
    """A copy of ``value``: each nested NaN becomes the argument ``nan``, each infinity its name in `NOT_FINITE`.

    >>> as_json({"loss": math.nan, "saw": [1.5, -math.inf], "speed": None})
    {'loss': 'NaN', 'saw': [1.5, '-Infinity'], 'speed': None}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return nan if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: as_json(entry, nan=nan) for key, entry in value.items()}
    return [as_json(entry, nan=nan) for entry in value] if isinstance(value, list | tuple) else value


def as_float(value: Any) -> float | None:
    """The number that a recorded value represents, which may be NaN or infinite; ``None`` for any other value.

    >>> as_float("NaN"), as_float("-Infinity"), as_float(3), as_float(None), as_float("3"), as_float(True)
    (nan, -inf, 3.0, None, None, None)
    """
    # The usual case, in records of millions of steps.
    if type(value) is float:
        return value
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def as_whole(value: object) -> int | None:
    """The value if it is an integer; ``None`` for anything else, including booleans.

    >>> as_whole(3), as_whole(3.0), as_whole(True), as_whole("3")
    (3, None, None, None)
    """
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def step_seconds(figures: Mapping[str, Any]) -> float | None:
    """The seconds that a step took, from its line of ``metrics.jsonl``; ``None`` if the step was not timed.

    >>> step_seconds({"batch": 64, "samples_per_s": 128.0}), step_seconds({"batch": 64, "samples_per_s": None})
    (0.5, None)
    """
    samples, speed = as_float(figures.get("batch")), as_float(figures.get("samples_per_s"))
    return samples / speed if samples is not None and speed is not None and 0 < speed < math.inf else None
