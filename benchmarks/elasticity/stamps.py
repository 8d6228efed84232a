"""The stamps of a worker's steps: one line per step in a separate file, independent of the systems' logs.

The clock is the machine's (``CLOCK_MONOTONIC``), the same in all processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

__all__ = ["Stamp", "Writer", "read_stamps"]


@dataclass(frozen=True)
class Stamp:
    """An attempt at a step: its start and end in seconds, the step counts before and after, and the size after.

    A failed attempt leaves the count unchanged, or lower if the system returned to an older state.
    """

    began: float
    ended: float
    before: int
    after: int
    size: int
    rank: int


class Writer:
    """Writes the stamps of this worker, each line by one call, so a killed worker leaves whole lines."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / f"{os.getpid()}.stamps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @contextmanager
    def step(self, count: Callable[[], int], *, place: Callable[[], tuple[int, int]]) -> Iterator[None]:
        """Stamps the step in the block, also if the step raises; ``place`` returns the size and the rank."""
        began, before = time.monotonic(), count()
        failed = True
        try:
            yield
            failed = False
        finally:
            ended = time.monotonic()
            size, rank = (0, -1) if failed else place()
            stamp = Stamp(began, ended, before, before if failed else count(), size, rank)
            os.write(self._file, (" ".join(map(str, astuple(stamp))) + "\n").encode())


def read_stamps(folder: Path) -> dict[int, list[Stamp]]:
    """The stamps of every worker by its process id, in order, without an unfinished last line."""
    return {int(path.stem): _read(path) for path in folder.glob("*.stamps")}


def _read(path: Path) -> list[Stamp]:
    text = path.read_text()
    rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [Stamp(float(row[0]), float(row[1]), *map(int, row[2:])) for row in rows]
