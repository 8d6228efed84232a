"""The seconds of a rescale: what went on beside training, and for how long training stood still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kungfu.cli.report.values import duration, label, mapping_of, number

__all__ = ["Timing", "stood_still_s", "timing_of"]

_BESIDE = ("spawn_s", "ready_s")
_STOPPED = ("barrier_s", "attach_s", "state_s")
_AFTER = "first_step_s"


@dataclass(frozen=True)
class Timing:
    """The parts of a rescale in words: ``beside`` training, while it ``stopped``, and the first step ``after``.

    ``inside`` are those of the stop, in brackets; empty where none are told.
    """

    beside: str
    stopped: str
    after: str
    inside: str = ""


def timing_of(rescale: Mapping[str, Any]) -> Timing:
    """The parts that a ``rescale`` event tells, each in its phase; parts that are not known by name count as stopped.

    >>> timing_of({"stop_s": 0.5, "parts": {"spawn_s": 4.6, "barrier_s": 0.03, "first_step_s": 0.2}})
    Timing(beside='spawn 4.6 s', stopped='500 ms (barrier 30 ms)', after='200 ms', inside=' (barrier 30 ms)')
    """
    parts = mapping_of(rescale, "parts")
    others = tuple(name for name in parts if name not in (*_BESIDE, *_STOPPED, _AFTER))
    listed = _listed(parts, (*_STOPPED, *others))
    inside = f" ({listed})" if listed else ""
    stopped = duration(rescale.get("stop_s")) + inside
    return Timing(_listed(parts, _BESIDE), stopped, duration(parts.get(_AFTER)), inside)


def stood_still_s(rescale: Mapping[str, Any]) -> float:
    """For how long training stood still, in seconds; 0 where the record does not tell."""
    return number(rescale.get("stop_s")) or 0.0


def _listed(parts: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return ", ".join(f"{label(name.removesuffix('_s'))} {duration(parts[name])}" for name in names if name in parts)
