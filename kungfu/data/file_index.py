"""Data derived from a file, computed by one process for all processes and stored next to the file.

These data, the index of the file, have a hidden name next to the file, or are in a separate folder. The process that
computes the index holds a lock, while other processes wait. The index gets its name when complete, and is valid while
the size and the modification time of the file are unchanged.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kungfu.errors import UsageError

Arrays = dict[str, NDArray[Any]]
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_VERSION = 1


def paths_of(files: Files, function: str) -> list[Path]:
    """The files given to a function of ``kf.data`` as a name, a pattern, or a list of these."""
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    found: list[Path] = []
    for one in given:
        name = os.fspath(one)
        matching = sorted(glob.glob(name)) if glob.has_magic(name) and not os.path.exists(name) else [name]
        if not matching:
            raise UsageError(f"kf.data.{function}({name!r}): no file has such a name")
        found += [Path(path) for path in matching]
    if not found:
        raise UsageError(f"kf.data.{function}([]): give at least one file")
    return found


def kept_arrays(path: Path, folder: Path | None, kind: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays stored for a file; computed if no valid arrays are stored.

    Args:
        folder: The folder of the index; ``None`` for the folder of the file.
        kind: The kind of derived data, a part of the index's name.
        make: Reads the file, and returns the arrays.

    Raises:
        UsageError: The file is missing, or the index cannot be written; errors of ``make`` are passed on.
    """
    if not path.is_file():
        raise UsageError(f"kf.data: there is no file {path}")
    kept = _place(path, folder, kind)
    known = _kept(kept, path)
    if known is not None:
        return known
    with _locked(kept):
        # Another process may have computed the index while this process waited.
        known = _kept(kept, path)
        if known is None:
            status = path.stat()
            known = make()
            _keep(known, kept, status)
        return known


def _place(path: Path, folder: Path | None, kind: str) -> Path:
    if folder is None:
        return path.parent / f".{path.name}.{kind}.npz"
    # The folder may contain indices of files that have the same name in different folders.
    return folder / f"{path.name}.{blake2b(str(path.absolute()).encode(), digest_size=6).hexdigest()}.{kind}.npz"


def _kept(kept: Path, path: Path) -> Arrays | None:
    """The arrays of the stored index, if it is valid for the present version of the file; else ``None``."""
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as found:
            status = path.stat()
            if found["of"].tolist() != [_VERSION, status.st_size, status.st_mtime_ns]:
                return None
            return {name: found[name] for name in found.files if name != "of"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


@contextlib.contextmanager
def _locked(kept: Path) -> Iterator[None]:
    """Holds the lock for computing this index; the lock is released at the latest when the process ends."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(kept, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UsageError(
            f"kf.data: an index of the file cannot be kept in {kept.parent} ({error.strerror}): give "
            "index=FOLDER, one that can be written and that all peers see, or one on each host"
        ) from error
    try:
        # Some file systems have no locks: then each process computes the index, and the last index is kept.
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    except UsageError:
        if not os.fstat(held).st_size:  # nothing was kept: leave no empty file
            kept.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)


def _keep(index: Arrays, kept: Path, status: os.stat_result) -> None:
    """Writes an index under a temporary name, makes it durable, and renames it."""
    new = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}.new")
    try:
        with new.open("xb") as file:  # never a link, which another user might have put there
            of = np.array([_VERSION, status.st_size, status.st_mtime_ns], np.int64)
            arrays: dict[str, Any] = {"of": of, **index}  # Any: newer NumPys have a keyword that is not an array
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, kept)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UsageError(
            f"kf.data: an index of the file cannot be written to {kept} ({error.strerror}): give "
            "index=FOLDER, one with room that can be written"
        ) from error
