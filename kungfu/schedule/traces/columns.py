"""Which column of a trace holds what. A new format is one more row of the table, or a ``Columns`` of your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kungfu.errors import UsageError

__all__ = ["FORMATS", "Columns", "detected", "own_columns"]


@dataclass(frozen=True)
class Columns:
    """The names of a format's columns.

    Args:
        submit: arrival: seconds, or a date and time like ``2017-10-09 07:01:55``.
        gpus: GPUs asked for, a whole number.
        duration: seconds on that many GPUs.
        name: the job's name; ``None`` names it after its line.
        model: the model, to look up a throughput curve; ``None`` if the trace has none.
        batch: its total batch size in samples; ``None`` if the trace has none.
        order: ``"sorted"`` if rows must come by arrival, ``"any"`` to have the reader sort them.
    """

    submit: str
    gpus: str
    duration: str
    name: str | None = None
    model: str | None = None
    batch: str | None = None
    order: Literal["sorted", "any"] = "sorted"

    def needed(self) -> tuple[str, ...]:
        """The columns that a file must have."""
        return tuple(c for c in (self.name, self.submit, self.gpus, self.duration, self.model, self.batch) if c)


FORMATS: dict[str, Columns] = {
    "tiresias": Columns("submit_time", "num_gpu", "duration", "job_id", model="model_name"),
    "itp": Columns("submission_time", "num_gpu", "duration", "job_id", "model_name", "batch_size"),
    "philly-jobs": Columns("submit_time", "num_gpu", "real_duration", "job_id", "model_name", "batch_size"),
    "philly": Columns("timestamp", "num_gpus", "duration", order="any"),
}
"""Formats by name: the Tiresias simulator's, Microsoft's ITP, one Philly virtual cluster, and all of Philly."""


def detected(header: Sequence[str], *, where: str) -> Columns:
    """The format whose columns are all in ``header``; of several the one that uses most of them.

    Raises:
        UsageError: if no format fits.

    >>> detected(["timestamp", "duration", "num_gpus", "gpu_time", "cluster"], where="philly.csv:1").gpus
    'num_gpus'
    """
    fitting = [columns for columns in FORMATS.values() if set(columns.needed()) <= set(header)]
    if not fitting:
        known = "; ".join(f"{name}: {', '.join(columns.needed())}" for name, columns in FORMATS.items())
        raise UsageError(f"{where}: the columns {', '.join(header)} fit no known format ({known}): name your columns")
    return max(fitting, key=lambda columns: len(columns.needed()))


def own_columns(text: str) -> Columns:
    """Columns from text like ``submit=arrived,gpus=n,duration=secs,order=any``.

    Raises:
        UsageError: for a word that is no field of ``Columns``, or if submit, gpus or duration is missing.

    >>> own_columns("submit=a,gpus=g,duration=d").duration
    'd'
    """
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    given = dict(pairs)
    allowed = set(Columns.__dataclass_fields__)
    wrong = [word for word, value in pairs if word not in allowed or not value]
    wrong += [word for word in given if [key for key, _ in pairs].count(word) > 1]
    missing = [word for word in ("submit", "gpus", "duration") if word not in given]
    if wrong or missing or given.get("order", "any") not in ("any", "sorted"):
        raise UsageError(
            f"columns {text!r}: expected submit=..,gpus=..,duration=.. and optionally name, model, batch, "
            f"order=sorted|any; wrong: {wrong or 'none'}, missing: {missing or 'none'}"
        )
    order: Literal["sorted", "any"] = "any" if given.pop("order", "sorted") == "any" else "sorted"
    return Columns(order=order, **given)
