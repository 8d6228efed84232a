"""What TensorBoard reads from the folder of a run: by its own reader of event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

__all__ = ["scalars_of", "texts_of"]

_EVERYTHING = {"scalars": 0, "tensors": 0}


def _read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance=_EVERYTHING)
    accumulator.Reload()
    return accumulator


def scalars_of(folder: Path) -> Mapping[str, list[tuple[int, float]]]:
    """The points of every curve, as steps and values, by tag."""
    accumulator = _read(folder)
    return {tag: [(one.step, one.value) for one in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def texts_of(folder: Path) -> Mapping[str, list[tuple[int, str]]]:
    """The texts, as steps and what they say, by tag."""
    accumulator = _read(folder)
    return {
        tag: [(one.step, one.tensor_proto.string_val[0].decode()) for one in accumulator.Tensors(tag)]
        for tag in accumulator.Tags()["tensors"]
    }
