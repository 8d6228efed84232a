"""The lines of a CSV file, and the values of their cells; each error names file, line and column."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kungfu.errors import UsageError


@dataclass(frozen=True)
class TraceRow:
    """A line of a CSV file: its cells by column, and its position ``FILE:LINE`` for messages."""

    cells: dict[str, str]
    where: str
    line: int

    def at(self, column: str) -> str:
        """The position of the cell in ``column`` as a text for messages: file, line and column."""
        return f"{self.where}: column {column}"


def read_rows(path: Path, *, skip: Callable[[UsageError], None] | None = None) -> tuple[list[str], Iterator[TraceRow]]:
    """The header of a CSV file, plain or gzipped, and an iterator over its rows; blank lines are skipped.

    If the header contains ``|``, this is the separator of cells, as in the output of `sacct -P`.

    Args:
        path: the file.
        skip: called with the error of each row that is skipped for too many or too few cells; ``None`` skips no row.

    Raises:
        UsageError: The file cannot be read, has no rows, or has a column twice. The iterator raises this error
            too, for a row with too many or too few cells if ``skip`` is ``None``.
    """
    text = _text(path)
    # The output of `sacct -P`, with commas in cells.
    piped = "|" in text.partition("\n")[0]
    if piped:
        lines = csv.reader(io.StringIO(text), strict=True, delimiter="|", quoting=csv.QUOTE_NONE)
    else:
        lines = csv.reader(io.StringIO(text), strict=True)
    try:
        numbered = [(lines.line_num, cells) for cells in lines if cells]
    except csv.Error as error:
        raise UsageError(f"{path}:{lines.line_num}: expected comma-separated values: {error}") from error
    if len(numbered) < 2:
        raise UsageError(f"{path}: the trace is empty: expected a header and at least one row")
    header = [name.strip() for name in numbered[0][1]]
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise UsageError(f"{path}:{numbered[0][0]}: expected a name once, got {', '.join(twice)} twice: rename one")
    return header, _rows(path, header=header, numbered=numbered[1:], skip=skip)


def _rows(
    path: Path, *, header: list[str], numbered: list[tuple[int, list[str]]], skip: Callable[[UsageError], None] | None
) -> Iterator[TraceRow]:
    for line, cells in numbered:
        where = f"{path}:{line}"
        if len(cells) == len(header):
            yield TraceRow(dict(zip(header, cells, strict=True)), where, line)
            continue
        error = UsageError(f"{where}: expected {len(header)} cells as in the header, got {len(cells)}: {cells}")
        if skip is None:
            raise error
        skip(error)


def _text(path: Path) -> str:
    try:
        packed = path.read_bytes()
        return (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode(
            "utf-8-sig"
        )  # spreadsheets write a byte-order mark
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected a readable CSV file in UTF-8, plain or .gz: {error}") from error


def instant_s(cell: str, *, where: str) -> float:
    """A time in seconds: a number of at least 0, or a date and time (UTC) in seconds since 1970.

    Args:
        cell: The text of the cell.
        where: The position of the cell, for errors.

    Raises:
        UsageError: The cell does not contain such a time.

    >>> instant_s("12.5", where=""), instant_s("1970-01-01 00:01:00", where="")
    (12.5, 60.0)
    """
    value = _number(cell)
    if value is None:
        value = _timestamp(cell)
    if value is None or value < 0:
        raise UsageError(f"{where}: expected seconds of at least 0 or a date like 2017-10-09 07:01:55, got {cell!r}")
    return value


_CLOCK = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6}(?:\.\d{1,9})?)")


def positive_s(cell: str, *, where: str) -> float:
    """A duration above 0 in seconds: a number, or days, hours, minutes and seconds in Slurm's format.

    >>> positive_s("90", where=""), positive_s("02:30", where=""), positive_s("1-02:03:04", where="")
    (90.0, 150.0, 93784.0)
    """
    value = _number(cell)
    if value is None and (parts := _CLOCK.fullmatch(cell.strip())):
        days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
        value = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if value is None or value <= 0:
        raise UsageError(f"{where}: expected seconds above 0 or a time like 1-02:03:04, got {cell!r}")
    return value


_TRES = re.compile(r"(?:^|,)gres/gpu=(\d{1,9})(?:,|$)")


def gpu_count(cell: str, *, where: str) -> int:
    """The GPUs of a job: a whole number of at least 1, or ``gres/gpu`` in Slurm's trackable resources.

    >>> gpu_count("4", where=""), gpu_count("billing=8,cpu=16,gres/gpu=2,mem=64G,node=1", where="")
    (4, 2)
    """
    if "=" not in cell:
        return whole_number(cell, where=where)
    found = _TRES.search(cell.strip())
    if found is None or not int(found[1]):
        raise UsageError(f"{where}: expected resources with gres/gpu=N of at least 1, got {cell!r}")
    return int(found[1])


_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def truth(cell: str, *, where: str) -> bool:
    """True for 1, true or yes; False for 0, false, no or an empty cell; raises ``UsageError`` for any other text."""
    value = _TRUTH.get(cell.strip().lower())
    if value is None:
        raise UsageError(f"{where}: expected 1 or 0, got {cell!r}")
    return value


def whole_number(cell: str, *, where: str) -> int:
    """The whole number of at least 1 in a cell; raises ``UsageError`` for any other text."""
    value = _number(cell)
    if value is None or value < 1 or value != int(value):
        raise UsageError(f"{where}: expected a whole number of at least 1, got {cell!r}")
    return int(value)


def word(cell: str, *, where: str) -> str:
    """The text of a cell that is not empty.

    Args:
        cell: The text of the cell.
        where: The position of the cell, for errors.

    Raises:
        UsageError: The cell is empty.

    >>> word(" job-7 ", where="")
    'job-7'
    """
    if not cell.strip():
        raise UsageError(f"{where}: expected a name, got {cell!r}")
    return cell.strip()


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _timestamp(cell: str) -> float | None:
    try:
        moment = datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
