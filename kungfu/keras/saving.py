"""``save``, ``save_weights`` and ``export`` of models in a job, where every peer calls them for the same file.

Keras writes in place, so peers that write one file at the same time would fail, and a peer that reads the file
meanwhile would find only a part. In a job one peer per host writes at a time, under a lock on the folder:

- A file is written under a hidden name in the same folder, and then replaces the old file. A reader finds a complete
  file, whatever happens to the writing peer.
- The result of a fit is the same on all peers. So after a fit a peer keeps a file that another peer has written since
  the fit's end. A second call of the same peer writes the file again, as weights may have changed since.
- A peer that skips finished fits has the weights from the ends of these fits, and keeps the files that the same run has
  written since then.

An extended attribute of the file records the run and the number of fits before the file was written (times would be
from several clocks). Without extended attributes, a hidden file in the same folder records both and the file's inode.
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
    """The mark on a written file: the run and the job that wrote it, and the number of fits finished by then.

    Args:
        run: The name of the job that began the run, which later jobs may resume.
        fits: The number of fits finished before the file was written.
    """

    run: str
    job: str
    fits: int

    @classmethod
    def read(cls, path: Path) -> _Mark | None:
        """Reads the mark of a file or folder, with its run, job and number of fits; ``None`` if it has no mark."""
        try:
            text = _attribute_of(path) or _beside(path).read_text().removesuffix(f" {path.stat().st_ino}")
            run, job, fits = text.split()
            return cls(run, job, int(fits))
        # No mark, or the mark of an earlier file with this name: such a mark has one word more.
        except (OSError, ValueError):
            return None

    def put_on(self, path: Path, *, for_path: Path | None = None) -> None:
        """Attaches this mark to a file or folder; ``for_path`` is its final path if it will be renamed."""
        text = f"{self.run} {self.job} {self.fits}"
        try:
            os.setxattr(path, _ATTRIBUTE, text.encode())
        except OSError:
            _beside(for_path or path).write_text(f"{text} {path.stat().st_ino}")


def _attribute_of(path: Path) -> str:
    try:
        return os.getxattr(path, _ATTRIBUTE).decode()
    except OSError:
        return ""


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.written")


def write_as_one_job() -> None:
    """Makes ``save``, ``save_weights`` and ``export`` write as one job, if this process is a peer."""
    if read_settings() is None:
        return
    written: dict[Path, int] = {}  # by file, the number of fits before this process's last call
    for name in ("save", "save_weights", "export"):
        own = getattr(keras.Model, name)
        if not hasattr(own, "in_place"):
            setattr(keras.Model, name, _shared(own, written))


def _shared(own: Callable[..., Any], written: dict[Path, int]) -> Callable[..., Any]:
    @wraps(own)
    def write(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        settings = read_settings()
        # A question to the user, several files, or a remote file: left to Keras.
        if settings is None or args or not _is_plain_file(own.__name__, filepath, kwargs):
            return own(model, filepath, *args, **kwargs)
        target, connection = Path(os.path.realpath(filepath)), connect()
        mark = _Mark(connection.run, settings.job, connection.phases_done)
        with _lock_on(target.parent):
            is_there, written[target] = _is_there(target, mark, connection, written), mark.fits
            if is_there:
                return None
            if own.__name__ == "export":  # a folder, which cannot be replaced atomically
                return _export(target, mark, lambda: own(model, filepath, **kwargs))
            return _replace(target, mark, lambda beside: own(model, beside, **kwargs))

    write.in_place = own  # type: ignore[attr-defined]  # for a later attach
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
    """True if another peer has already written the file, after this fit or a later fit."""
    found = _Mark.read(target)
    if connection.is_in_phase or not mark.fits or found is None or found.fits < mark.fits:
        return False
    # The file may be from an earlier job of this run.
    if connection.passes:
        return found.run == mark.run
    return found.job == mark.job and written.get(target) != mark.fits


def _export(target: Path, mark: _Mark, write: Callable[[], Any]) -> Any:
    # A killed peer leaves a partial folder, which must not have a mark.
    with suppress(OSError):
        os.removexattr(target, _ATTRIBUTE)
    _beside(target).unlink(missing_ok=True)
    result = write()
    mark.put_on(target)
    return result


def _replace(target: Path, mark: _Mark, write: Callable[[str], Any]) -> Any:
    # One name for all peers of a host: the next peer replaces the file that a killed peer has left.
    beside = target.with_name(f".{platform.node()}.{target.name}")
    try:
        beside.unlink(missing_ok=True)
        beside.open("xb").close()  # fails on a link, which another user might have put there
        result = write(str(beside))
        mark.put_on(beside, for_path=target)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    return result


@contextmanager
def _lock_on(folder: Path) -> Iterator[None]:
    """Holds a lock on a folder for one thread of a host at a time; the end of the process releases the lock."""
    held: set[Path] = vars(_writing).setdefault("folders", set())
    # The saving of a model may save another model in the same folder: the thread would wait for itself.
    if folder in held:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        held.add(folder)
        yield
    finally:
        held.discard(folder)
        os.close(handle)
