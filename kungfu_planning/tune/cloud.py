"""The provider: its instances, its billing, and its delays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from kungfu.errors import UsageError
from kungfu_planning.tune.latency import Latency

Billing = Literal["instance", "function"]
"""The unit of billing: whole instances from delivery to release, or GPUs while a trial trains on them."""

Packing = Literal["counted", "placed"]
"""The count of a stage's instances: enough for the number of GPUs, or enough to keep each trial's GPUs together."""


@dataclass(frozen=True)
class Instance:
    """A kind of machine of the provider, with its price.

    Args:
        gpus: GPUs of one instance, at least 1.
        dollars_per_s: the price in dollars per second, above 0: at a price of 0 every plan would be equally good.
        minimum_s: the minimum billed time, in seconds; 60 at the large providers.

    Raises:
        UsageError: A value is out of range.
    """

    gpus: int
    dollars_per_s: float
    minimum_s: float = 60.0

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise UsageError(f"an instance has {self.gpus} GPUs; give at least 1")
        if not (math.isfinite(self.dollars_per_s) and self.dollars_per_s > 0):
            raise UsageError(f"the price of an instance is {self.dollars_per_s} $/s; give a price above 0, as $12.24/h")
        if not (math.isfinite(self.minimum_s) and self.minimum_s >= 0):
            raise UsageError(f"the least billed time is {self.minimum_s} s; give a finite number of seconds, 0 or more")


@dataclass(frozen=True)
class Dataset:
    """The data that every new instance fetches once: gigabytes, and dollars per gigabyte."""

    gigabytes: float = 0.0
    dollars_per_gb: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("size in GB", self.gigabytes), ("price per GB", self.dollars_per_gb)):
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"the data's {name} is {value}; give a finite number, 0 or more")

    @property
    def dollars(self) -> float:
        """The dollars for the data of one provisioned instance."""
        return self.gigabytes * self.dollars_per_gb


@dataclass(frozen=True)
class Delays:
    """Times without training: the provider's queue, an instance's set-up, a trial's start, a synchronisation."""

    scale: Latency = field(default_factory=lambda: Latency(0.0))
    init: Latency = field(default_factory=lambda: Latency(0.0))
    startup: Latency = field(default_factory=lambda: Latency(0.0))
    sync: Latency = field(default_factory=lambda: Latency(0.0))


@dataclass(frozen=True)
class Cloud:
    """A simulated provider: its instance, delays, data, billing and packing."""

    instance: Instance
    delays: Delays = field(default_factory=Delays)
    data: Dataset = field(default_factory=Dataset)
    billing: Billing = "instance"
    packing: Packing = "counted"
