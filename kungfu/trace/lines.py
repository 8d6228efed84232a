"""The lines of ``trace.jsonl``: functions that build each kind of line, and the fields that a reader requires.

Each line is a JSON object. A *header* line begins a phase and contains its plan. A *step* line contains one peer's
share of a step. A *snapshot* line contains the states of one peer's folds after a step. See ``docs/trace.md``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

TRACE_SCHEMA = 1

LineKind = Literal["header", "step", "snapshot", "cut", "unknown"]
LineFields = Mapping[str, Any]
Texts = Mapping[str, str]

# The format of a finite number; nine digits distinguish any two float32 values.
CONVERSIONS = {"float32": "%.9g", "int64": "%d"}

_KINDS: Mapping[str, LineKind] = {"trace": "header", "step": "step", "after": "snapshot", "cut": "cut"}
_WHOLE = {"step": ("step", "view", "rank"), "snapshot": ("after", "view", "rank", "peer")}
_MAPPINGS = {"step": ("local",), "snapshot": ("folds",)}


def header_line(
    plan: LineFields | None, *, policies: Sequence[str], every: int, phase: int = 1, first: int = 1
) -> dict[str, Any]:
    """The header line of a phase; from phase 2 on, the line contains the phase's number and first step, ``first``.

    ``every`` is the number of steps between two snapshots, and ``policies`` are the values of ``--policy``."""
    header = {"trace": TRACE_SCHEMA, "policies": list(policies), "snapshot_every": every, "plan": plan}
    return header if phase == 1 else {**header, "phase": phase, "first_step": first}


def step_format(position: Texts, *, local: Texts, agreed: Texts | None, fired: Texts) -> str:
    """The format of a step line, which contains one peer's share of a step. Each value is either the output of
    `json_literal`, or an entry of ``CONVERSIONS``, which ``%`` replaces by a number. Only rank 0 writes the sources
    ``agreed``, which are equal on all peers, and the numbers that the rules in ``fired`` requested."""
    parts = [_entries(position), f'"local":{{{_entries(local)}}}']
    if agreed is not None:
        parts.append(f'"agreed":{{{_entries(agreed)}}}')
    if fired:
        parts.append(f'"fired":{{{_entries(fired)}}}')
    return "{" + ",".join(parts) + "}"


def json_literal(value: float | bool) -> str:
    """A value as JSON text that `step_format` inserts unchanged."""
    return json.dumps(_written(value), allow_nan=False)


def snapshot_line(position: Mapping[str, int], *, folds: LineFields) -> dict[str, Any]:
    """The line of a snapshot of a peer's folds; ``position`` has the fields "after", "view", "rank" and "peer"."""
    return {**position, "folds": {name: _written(value) for name, value in folds.items()}}


def line_kind(line: LineFields) -> LineKind:
    """The kind of a line; ``unknown`` for an object of no known kind, or without all required fields of its kind."""
    kind: LineKind = next((kind for key, kind in _KINDS.items() if key in line), "unknown")
    whole = all(type(line.get(key)) is int for key in _WHOLE.get(kind, ()))
    mapped = all(isinstance(line.get(key), dict) for key in _MAPPINGS.get(kind, ()))
    return kind if whole and mapped else "unknown"


def number_from_json(value: Any) -> Any:
    """Restores a number, or a list of numbers, from a trace: null represents NaN, and a text represents an infinity.

    >>> number_from_json(None), number_from_json("-inf"), number_from_json(3), number_from_json([1.5, None])
    (nan, -inf, 3, [1.5, nan])
    """
    if isinstance(value, list):
        return [number_from_json(one) for one in value]
    if value is None:
        return math.nan
    return float(value) if isinstance(value, str) else value


def _written(value: Any) -> Any:
    """Converts a value for JSON: floats get nine digits, which distinguish any two float32 values; NaN becomes null."""
    if isinstance(value, list):
        return [_written(one) for one in value]
    if not isinstance(value, float):
        return value
    if math.isfinite(value):
        return float(f"{value:.9g}")
    return None if math.isnan(value) else str(value)


def _entries(texts: Texts) -> str:
    return ",".join(f"{json.dumps(name).replace('%', '%%')}:{text}" for name, text in texts.items())
