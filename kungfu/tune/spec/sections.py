"""Every key of a specification: its section, its kind, its meaning, and what it is when left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kungfu.tune.model import Latency
from kungfu.tune.spec.kinds import (
    COUNT,
    COUNTS,
    CURVE,
    DATA_PRICE,
    LATENCY,
    PRICE,
    SIZE,
    SPAN,
    Kind,
    at_least,
    one_of,
)

__all__ = ["REQUIRED", "SECTIONS", "Key"]

REQUIRED: Final = object()
"""The default of a key that has none."""


@dataclass(frozen=True)
class Key:
    """One key: ``default`` is REQUIRED, or the value when the key is left out (shown to people as ``shown``)."""

    kind: Kind
    meaning: str
    default: Any = REQUIRED
    shown: str | int | list[int] | None = None


_NO_TIME: Final = Latency(0.0)

_EXPERIMENT: Final = {
    "method": Key(one_of("successive-halving", "hyperband"), "the early-stopping method"),
    "trials": Key(COUNT, "n, trials of the first stage; only for successive-halving", None),
    "least_iterations": Key(COUNT, "r, iterations of the first stage"),
    "most_iterations": Key(COUNT, "R, iterations of a survivor in the end"),
    "eta": Key(at_least(2), "the best 1/eta of the trials survive a stage"),
}
_SCALING: Final = {
    "seconds_per_iteration": Key(CURVE, "measured time of an iteration by GPUs of the trial, as {1: 90 s, 4: 31 s}"),
    "sigma": Key(SPAN, "standard deviation of one iteration", 0.0, "0 s"),
}
_CLOUD: Final = {
    "gpus_per_instance": Key(COUNT, "GPUs of one instance"),
    "price": Key(PRICE, "price of one instance"),
    "minimum_billing": Key(SPAN, "least time that an instance is billed for", 60.0, "60 s"),
    "billing": Key(
        one_of("instance", "function"), "what is paid: instances held, or GPUs used", "instance", "instance"
    ),
    "packing": Key(
        one_of("counted", "placed"), "instances of a stage: GPUs counted, or trials kept whole", "counted", "counted"
    ),
    "scale_latency": Key(LATENCY, "the provider's queue, not billed", _NO_TIME, "0 s"),
    "init_latency": Key(LATENCY, "set-up of a new instance, billed", _NO_TIME, "0 s"),
    "startup_latency": Key(LATENCY, "start of a trial in a stage", _NO_TIME, "0 s"),
    "sync_latency": Key(LATENCY, "the meeting at the end of a stage", _NO_TIME, "0 s"),
}
_DATA: Final = {
    "size": Key(SIZE, "data that every new instance fetches once", 0.0, "0 GB"),
    "price": Key(DATA_PRICE, "price of fetching it", 0.0, "$0/GB"),
}
_SEARCH: Final = {
    "max_gpus": Key(COUNT, "most GPUs of any stage; left out: all that the trials can use", None),
    "warm_starts": Key(COUNTS, "multiples of the best static size to start from", (1, 2, 3), [1, 2, 3]),
    "steps": Key(one_of("instance", "literal"), "how far one greedy step goes", "instance", "instance"),
    "samples": Key(COUNT, "simulated runs per plan when something is random", 20, 20),
    "seed": Key(at_least(0), "seed of those runs", 0, 0),
}

SECTIONS: Final[Mapping[str, Mapping[str, Key]]] = {
    "experiment": _EXPERIMENT,
    "scaling": _SCALING,
    "cloud": _CLOUD,
    "data": _DATA,
    "search": _SEARCH,
}
