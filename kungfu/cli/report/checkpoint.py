"""A checkpoint that was written, or could not be: in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kungfu.cli.report.values import duration, figure, number, text_of

__all__ = ["kept", "kept_how"]

Fields = Mapping[str, Any]
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def kept(event: Fields) -> str:
    """What became of a checkpoint, in a sentence.

    >>> kept({"step": 40, "rule": "keeping", "path": "runs/c/step-00000040", "bytes": 1234567})
    'step 40: a checkpoint of 1.2 MB is in runs/c/step-00000040, as keeping asked'
    """
    step, path = figure(event.get("step")), text_of(event, "path")
    if "error" in event:
        return f"step {step}: no checkpoint could be written to {path}: {text_of(event, 'error')}"
    return f"step {step}: a checkpoint of {_size(event.get('bytes'))} is in {path}, as {text_of(event, 'rule')} asked"


def kept_how(event: Fields) -> list[str]:
    """How long it took, and how long training stood still for it."""
    if "error" in event:
        return ["training went on without it; what was there before is as it was"]
    held, took = duration(event.get("stop_s")), duration(event.get("seconds"))
    return [f"rank 0 held the others for {held}, and wrote for {took} while all trained on"]


def _size(value: object) -> str:
    size = number(value)
    if size is None:
        return "unknown size"
    return next((f"{size / least:.1f} {unit}" for least, unit in _UNITS if size >= least), f"{size:.0f} bytes")
