"""The kinds of value that a specification may hold: how each is read, and how a JSON schema says it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kungfu.errors import UsageError
from kungfu.tune.model import Latency
from kungfu.tune.spec import units
from kungfu.tune.spec.entries import Entry, is_single, items, mapping, refuse, text

__all__ = ["COUNT", "COUNTS", "CURVE", "DATA_PRICE", "LATENCY", "PRICE", "SIZE", "SPAN", "Kind", "at_least", "one_of"]


@dataclass(frozen=True)
class Kind:
    """``read`` turns an entry into a value or raises UsageError; ``schema`` describes what it takes."""

    read: Callable[[Entry], Any]
    schema: dict[str, Any]


def one_of(*choices: str) -> Kind:
    """One of the given words."""

    def read(entry: Entry) -> str:
        word = text(entry)
        if word not in choices:
            raise refuse(entry, reason=f"is {word!r}; give one of: {', '.join(choices)}")
        return word

    return Kind(read, {"enum": list(choices)})


def _whole(entry: Entry, *, least: int) -> int:
    word = text(entry)
    if not re.fullmatch(r"[0-9]{1,12}", word) or int(word) < least:
        raise refuse(entry, reason=f"is {word!r}; give a whole number of at least {least}")
    return int(word)


def at_least(least: int) -> Kind:
    """A whole number from ``least`` on."""
    return Kind(lambda entry: _whole(entry, least=least), {"type": "integer", "minimum": least})


def _measured(parse: Callable[[str], float]) -> Callable[[Entry], float]:
    def read(entry: Entry) -> float:
        word = text(entry)
        try:
            return parse(word)
        except UsageError as error:
            raise refuse(entry, reason=f"is wrong: {error}") from error

    return read


def _price(entry: Entry) -> float:
    dollars_per_s = _measured(units.rate_per_s)(entry)
    if dollars_per_s == 0:
        raise refuse(entry, reason=f"is {text(entry)!r}: every plan would cost the same; give a price above 0")
    return dollars_per_s


def _counts(entry: Entry) -> tuple[int, ...]:
    counts = tuple(COUNT.read(each) for each in items(entry))
    if not counts:
        raise refuse(entry, reason="is empty; give at least one whole number, as [1, 2, 3]")
    return counts


def _latency(entry: Entry) -> Latency:
    """A duration, or its mean and spread."""
    if is_single(entry):
        return Latency(SPAN.read(entry))
    parts = mapping(entry)
    for name, part in parts.items():
        if name not in ("mean", "sigma"):
            raise refuse(part, reason="is not known; a latency has a mean and a sigma, or is one duration")
    if "mean" not in parts:
        raise refuse(entry, reason='has no mean; write {mean: 15 s, sigma: 3 s}, or one duration such as "15 s"')
    return Latency(SPAN.read(parts["mean"]), SPAN.read(parts["sigma"]) if "sigma" in parts else 0.0)


def _curve(entry: Entry) -> dict[int, float]:
    """Seconds by GPUs."""
    found: dict[int, float] = {}
    for name, point in mapping(entry).items():
        if not re.fullmatch(r"[1-9][0-9]{0,8}", name):
            raise refuse(point, reason=f"is for {name!r} GPUs; give whole numbers of at least 1")
        seconds = SPAN.read(point)
        if seconds <= 0:
            raise refuse(point, reason=f"is {text(point)!r}; an iteration takes more than 0 s")
        found[int(name)] = seconds
    if not found:
        raise refuse(entry, reason="has no point; give at least seconds per iteration on 1 GPU, as {1: 10 s}")
    return found


def _pattern(pattern: str, *, example: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, "examples": [example]}


_DURATION: Final = _pattern(units.DURATION, example="20m")

COUNT: Final = at_least(1)
COUNTS: Final = Kind(_counts, {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1})
SPAN: Final = Kind(_measured(units.duration_s), _DURATION)
PRICE: Final = Kind(_price, _pattern(units.RATE, example="$12.24/h"))
SIZE: Final = Kind(_measured(units.size_gb), _pattern(units.SIZE, example="150 GB"))
DATA_PRICE: Final = Kind(_measured(units.per_gb), _pattern(units.PER_GB, example="$0.01/GB"))
LATENCY: Final = Kind(
    _latency,
    {
        "anyOf": [
            _DURATION,
            {
                "type": "object",
                "properties": {"mean": _DURATION, "sigma": _DURATION},
                "required": ["mean"],
                "additionalProperties": False,
            },
        ]
    },
)
CURVE: Final = Kind(
    _curve,
    {
        "type": "object",
        "patternProperties": {"^[1-9][0-9]*$": _DURATION},
        "additionalProperties": False,
        "minProperties": 1,
    },
)
