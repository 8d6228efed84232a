"""``save``, ``save_weights`` and ``export`` of models in a job: every peer runs the program, and writes the same file.

Keras writes in place, so peers that write one file at once would fail, and a peer that reads it meanwhile would find a
part. In a job one peer of a host writes at a time, by a lock on the folder:

- A file is written beside, under a hidden name, and then takes the place of the old one. A reader finds a whole one,
  whatever happens to the peer that writes.
- What a fit has come to is the same on all peers. So after a fit a peer leaves alone what another one has written since
  the fit's end; its own second call for the same file writes, as weights may have been changed since.
- A peer that passes through fits that are over holds what the job had at their ends. It leaves alone what was written
  later than that.

After how many fits of which run it was written, a file says in an extended attribute: times would be those of several
clocks, which are set. Where a file system has none, a hidden file beside it says so, with the number of its inode.
"""

from __future__ import annotations

import fcntl
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import keras

from kungfu.runtime.api import read_settings
from kungfu.training.loop.job_connection import JobConnection, connect

_FILES = (".keras", ".h5", ".hdf5")
_ATTRIBUTE = "user.kungfu.written"
_writing = threading.local()


@dataclass(frozen=True)
class _Mark:
    """When a file was written.

    Args:
        run: The name of the job that has begun the run, from which this one may continue.
        job: The name of the job.
        fits: The number of its fits that were over.
    """

    run: str
    job: str
    fits: int

    @classmethod
    def read(cls, path: Path) -> _Mark | None:
        """The mark of a file or folder; ``None`` if it has none."""
        try:
            run, job, fits = (_attribute_of(path) or _beside(path).read_text().removesuffix(_inode(path))).split()
            return cls(run, job, int(fits))
        # No mark, or that of a file which was here before: it has one word more.
        except (OSError, ValueError):
            return None

    def put_on(self, path: Path, *, for_path: Path | None = None) -> None:
        """Marks a file or folder, which is about to get another path perhaps."""
        text = f"{self.run} {self.job} {self.fits}"
        try:
            os.setxattr(path, _ATTRIBUTE, text.encode())
        except OSError:
            _beside(for_path or path).write_text(text + _inode(path))


def _attribute_of(path: Path) -> str:
    try:
        return os.getxattr(path, _ATTRIBUTE).decode()
    except OSError:
        return ""


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.written")


def _inode(path: Path) -> str:
    return f" {path.stat().st_ino}"


def write_as_one_job() -> None:
    """From here on the models of this process, a peer, are written as those of a job: ``save`` and its like."""
    written: dict[Path, int] = {}  # after how many fits this process has written it, or left it alone
    for name in ("save", "save_weights", "export"):
        own = getattr(keras.Model, name)
        if not hasattr(own, "in_place"):
            setattr(keras.Model, name, _shared(own, written))


def _shared(own: Callable[..., Any], written: dict[Path, int]) -> Callable[..., Any]:
    @wraps(own)
    def write(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        settings = read_settings()
        # A question to the user, several files, another machine: that is Keras' own matter.
        if settings is None or args or not _is_plain_file(own.__name__, filepath, kwargs):
            return own(model, filepath, *args, **kwargs)
        target, connection = Path(os.path.realpath(filepath)), connect()
        mark = _Mark(connection.run, settings.job, connection.phases_done)
        with _lock_on(target.parent):
            is_there, written[target] = _is_there(target, mark, connection, written), mark.fits
            if is_there:
                return None
            if own.__name__ == "export":  # a folder, whose place no other can take at once
                return _export(target, mark, lambda: own(model, filepath, **kwargs))
            return _replace(target, mark, lambda beside: own(model, beside, **kwargs))

    write.in_place = own  # type: ignore[attr-defined]  # for an attach after this one
    return write


def _is_plain_file(name: str, filepath: Any, given: Mapping[str, Any]) -> bool:
    if not isinstance(filepath, str | os.PathLike) or "://" in os.fspath(filepath):
        return False
    if not given.get("overwrite", True) or not os.path.isdir(os.path.dirname(os.path.abspath(filepath))):
        return False
    is_named = (
        str(filepath).endswith(_FILES) and given.get("max_shard_size") is None and given.get("zipped") is not False
    )
    return name == "export" or is_named


def _is_there(target: Path, mark: _Mark, connection: JobConnection, written: Mapping[Path, int]) -> bool:
    """True if another peer has written what this one would, or a peer that is further on has."""
    found = _Mark.read(target)
    if connection.is_in_phase or not mark.fits or found is None or found.fits < mark.fits:
        return False
    # The file may be of the run that this one goes on from.
    if connection.passes:
        return found.run == mark.run
    return found.job == mark.job and written.get(target) != mark.fits


def _export(target: Path, mark: _Mark, write: Callable[[], Any]) -> Any:
    # A peer that is killed leaves a part, which is none of the job's.
    with suppress(OSError):
        os.removexattr(target, _ATTRIBUTE)
    _beside(target).unlink(missing_ok=True)
    result = write()
    mark.put_on(target)
    return result


def _replace(target: Path, mark: _Mark, write: Callable[[str], Any]) -> Any:
    # One name for all peers of a host: what one has left that was killed the next one takes.
    beside = target.with_name(f".{platform.node()}.{target.name}")
    try:
        beside.unlink(missing_ok=True)
        beside.open("xb").close()  # a link that another user has put there would be followed
        result = write(str(beside))
        mark.put_on(beside, for_path=target)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    return result


@contextmanager
def _lock_on(folder: Path) -> Iterator[None]:
    """One thread of a host at a time; a process that is killed lets go of it."""
    held: set[Path] = vars(_writing).setdefault("folders", set())
    # A model that is being written writes another one beside itself: its thread would wait for itself.
    if folder in held:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some file systems know no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        held.add(folder)
        yield
    finally:
        held.discard(folder)
        os.close(handle)
