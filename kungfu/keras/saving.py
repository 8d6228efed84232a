"""``save``, ``save_weights`` and ``export`` of models in a job: every peer runs the program, and writes the same file.

Keras writes in place, so peers that write one file at once would fail, and a peer that reads it meanwhile would find a
part. In a job one peer of a host writes at a time, by a lock on the folder:

- A file is written beside, under a hidden name, and then takes the place of the old one. A reader finds a whole one,
  whatever happens to the peer that writes.
- What a fit has come to is the same on all peers. So after a fit a peer leaves alone what another one has written since
  the fit's end; its own second call for the same file writes, as weights may have been changed since.
- A peer that passes through fits that are over holds what the job had at their ends. It leaves alone what was written
  later than that.
"""

from __future__ import annotations

import fcntl
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import keras

from kungfu.runtime.api import read_settings
from kungfu.training.job_connection import JobConnection, connect

__all__ = ["write_as_one_job"]

_FILES = (".keras", ".h5", ".hdf5")
_writing = threading.local()


def write_as_one_job() -> None:
    """From here on the models of this process, a peer, are written as those of a job: ``save`` and its like."""
    written: dict[Path, float] = {}  # at the end of which fit this process has written it, or left it alone
    for name in ("save", "save_weights", "export"):
        own = getattr(keras.Model, name)
        if not hasattr(own, "in_place"):
            setattr(keras.Model, name, _shared(own, written))


def _shared(own: Callable[..., Any], written: dict[Path, float]) -> Callable[..., Any]:
    @wraps(own)
    def write(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        # A question to the user, several files, another machine: that is Keras' own matter.
        if read_settings() is None or args or not _is_plain_file(own.__name__, filepath, kwargs):
            return own(model, filepath, *args, **kwargs)
        target, connection = Path(os.path.realpath(filepath)), connect()
        with _lock_on(target.parent):
            is_there, written[target] = _is_there(target, connection, written), connection.ended_at
            if is_there:
                return None
            if own.__name__ == "export":  # a folder, whose place no other can take at once
                return own(model, filepath, **kwargs)
            return _replace(target, lambda beside: own(model, beside, **kwargs))

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


def _is_there(target: Path, connection: JobConnection, written: Mapping[Path, float]) -> bool:
    """Whether another peer has written what this one would, or a peer that is further on has."""
    if connection.is_in_phase or not connection.ended_at:
        return False
    if not connection.passes and written.get(target) == connection.ended_at:
        return False
    try:
        inside = target / "saved_model.pb"
        return (inside if target.is_dir() else target).stat().st_mtime >= connection.ended_at
    except OSError:
        return False


def _replace(target: Path, write: Callable[[str], Any]) -> Any:
    # One name for all peers of a host: what one has left that was killed the next one takes.
    beside = target.with_name(f".{platform.node()}.{target.name}")
    try:
        result = write(str(beside))
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
