"""What a step tells the host: one row of numbers that leaves the graph with it.

A variable that Python reads costs it some 30 microseconds, ten times that while training has the caches: so nothing is
read between two steps. What the row says holds until the next step, or until the host itself changes a variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kungfu.training.graph.host import fetch
from kungfu.training.graph.ledger import Ledger
from kungfu.training.graph.row import row_of

__all__ = ["Account", "Where", "code_of", "read_account", "read_where", "write_account"]


class Where(NamedTuple):
    """Where a run is behind a step: the position, the micro-batches done of the next step, the view, and its batch."""

    epoch: int
    offset: int
    micro: int
    version: int
    size: int
    rank: int
    global_batch_size: int


@dataclass(frozen=True)
class Account:
    """What one call of the step came to, where the run is behind it, and the tape's row of the last whole step."""

    code: int
    where: Where
    row: np.ndarray


def write_account(ledger: Ledger, code: Any) -> Any:
    """Graph, last of all in a step: float64 [code, where, tape], which holds whole numbers up to 2 ** 53."""
    return row_of([code, *_variables(ledger), ledger.figures.tape.row])


def code_of(account: Any) -> Any:
    """Graph: what the step came to, int64."""
    return tf.cast(account[0], tf.int64)


def read_account(account: Any) -> Account:
    """The host's side of ``write_account``."""
    row = account.numpy()
    code, *where = map(int, row[: len(Where._fields) + 1].tolist())
    return Account(code, Where(*where), row[len(Where._fields) + 1 :])


def read_where(ledger: Ledger) -> Where:
    """The same from the variables: before the first step, and where one did not come to its end."""
    return Where(*(int(fetch(variable)) for variable in _variables(ledger)))


def _variables(ledger: Ledger) -> tuple[tf.Variable, ...]:
    progress, place = ledger.progress, ledger.place
    in_view = (place.version, place.size, place.rank, place.global_batch_size)
    return (progress.epoch, progress.offset, ledger.figures.micro.done, *in_view)
