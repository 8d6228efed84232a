"""The claim of a job on a folder of checkpoints: two jobs in one folder would remove each other's files.

A file in the folder names the job. Each process of the job that writes there, or lets peers write, shares a lock on the
file. The kernel releases a lock when its process ends, and child processes do not inherit it. If a file system shares
locks between hosts, the claim holds for all of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kungfu.errors import UsageError

_NAME = ".lock"
_LONGEST = 256
_held: dict[Path, int] = {}  # file descriptors of this process, by folder


class FolderInUse(UsageError):  # noqa: N818 - a state of the folder
    """Another job writes its checkpoints to the folder."""


def claim(folder: Path, writer: str) -> bool:
    """Claims a folder for a job until this process ends or calls `release`; creates the folder if it is missing.

    Returns:
        True if no other job can claim the folder; False if the file system has no locks or denies this user a lock.

    Raises:
        FolderInUse: Another job has claimed the folder; the error names that job's ``writer``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            _share(folder, writer)
    except OSError:
        return False
    return True


def release(folder: Path) -> None:
    """Releases this process's claim on a folder, if there is one."""
    if (descriptor := _held.pop(folder, None)) is not None:
        os.close(descriptor)


def _share(folder: Path, writer: str) -> None:
    if folder not in _held or not _is_in_place(_held[folder], folder):
        release(folder)
        _held[folder] = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    descriptor = _held[folder]
    holder = os.pread(descriptor, _LONGEST, 0).decode(errors="replace").strip()
    try:
        if holder != writer:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{writer}\n".encode(), 0)
        fcntl.lockf(descriptor, fcntl.LOCK_SH)
    # Another job holds the lock.
    except BlockingIOError:
        release(folder)
        raise FolderInUse(
            f"{folder} is in use: {holder} writes its checkpoints there, and two jobs would remove each other's; give "
            "another folder, or wait for the end of that job"
        ) from None
    except OSError:
        release(folder)
        raise


def _is_in_place(descriptor: int, folder: Path) -> bool:
    """True if the folder has not been replaced since it was claimed."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder / _NAME))
    except OSError:
        return False


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Locks the folder while a claim is made; this lock excludes only processes of the same host."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
