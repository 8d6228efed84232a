"""The vocabulary of policies: maps, one line an entry, and the collectives that turn local into agreed."""

from kungfu.ops.collectives import all_gather, all_reduce
from kungfu.ops.vocabulary import (
    ceil,
    clip,
    exp,
    floor,
    is_finite,
    log,
    max,
    maximum,
    mean,
    median,
    min,
    minimum,
    norm_squared,
    round,
    sqrt,
    sum,
    where,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "ceil",
    "clip",
    "exp",
    "floor",
    "is_finite",
    "log",
    "max",
    "maximum",
    "mean",
    "median",
    "min",
    "minimum",
    "norm_squared",
    "round",
    "sqrt",
    "sum",
    "where",
]
