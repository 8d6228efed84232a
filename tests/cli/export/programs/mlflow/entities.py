"""The values of the tracking client."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class RunTag(NamedTuple):
    key: str
    value: str
