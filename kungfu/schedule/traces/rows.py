"""The lines of a CSV file as dictionaries that know where they stand."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import UsageError

__all__ = ["Row", "read_rows"]


@dataclass(frozen=True)
class Row:
    """One line: its cells by column, and ``FILE:LINE`` for messages."""

    cells: dict[str, str]
    where: str
    line: int

    def at(self, column: str) -> str:
        """Where a cell stands, for a message."""
        return f"{self.where}: column {column}"


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """The header and all rows of a CSV file, plain or gzipped; blank lines are passed over.

    Raises:
        UsageError: for a file that cannot be read, has no rows, a column twice, or a row with too many or few cells.
    """
    lines = csv.reader(io.StringIO(_text(path)), strict=True)
    try:
        numbered = [(lines.line_num, cells) for cells in lines if cells]
    except csv.Error as error:
        raise UsageError(f"{path}:{lines.line_num}: expected comma-separated values: {error}") from error
    if len(numbered) < 2:
        raise UsageError(f"{path}: the trace is empty: expected a header and at least one row")
    header = [name.strip() for name in numbered[0][1]]
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise UsageError(f"{path}:{numbered[0][0]}: expected a name once, got {', '.join(twice)} twice: rename one")
    return header, [_row(path, line=line, header=header, cells=cells) for line, cells in numbered[1:]]


def _row(path: Path, *, line: int, header: list[str], cells: list[str]) -> Row:
    if len(cells) != len(header):
        raise UsageError(f"{path}:{line}: expected {len(header)} cells as in the header, got {len(cells)}: {cells}")
    return Row(dict(zip(header, cells, strict=True)), f"{path}:{line}", line)


def _text(path: Path) -> str:
    try:
        packed = path.read_bytes()
        return (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode(
            "utf-8-sig"
        )  # spreadsheets write a mark
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected a readable CSV file in UTF-8, plain or .gz: {error}") from error
