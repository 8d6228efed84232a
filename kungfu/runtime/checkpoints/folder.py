"""A folder of checkpoints: each is written under a temporary name, made durable, and only then renamed.

``DIR/step-00000120/`` is complete as soon as it has that name, and ``DIR/latest`` names the newest checkpoint. If a
writer is killed or the disk is full during a write, all existing checkpoints and ``latest`` remain unchanged. The next
writer removes the files of a killed writer; a writer that was merely slow then lacks its files, and publishes nothing.

The newest checkpoint is the one published last: each checkpoint contains its sequence number in the folder. File times
are not used, because clocks are changed and folders are copied.

A job claims its folder, because two jobs in one folder would remove each other's files. A file in the folder names the
job. Each process of the job that writes to the folder, or lets peers write, has a shared lock on that file. The kernel
releases a lock when its process ends, and child processes do not inherit the lock. If a file system shares locks
between hosts, the claim is valid on all these hosts.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import UsageError
from kungfu.runtime.checkpoints.manifest import MANIFEST, read_manifest

_LATEST = "latest"
_WRITING = ".writing-"
_PUBLISHED = "published"  # a file in each checkpoint, with its number and the job
_MOST_DIGITS = 18
_LOCK = ".lock"
_LONGEST_WRITER = 256
_held: dict[Path, int] = {}  # file descriptors of this process, by folder


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder of the newest ``keep`` checkpoints of ``job``; ``job`` is empty for a program that runs alone."""

    path: Path
    keep: int = 3
    job: str = ""

    def publish(self, step: int, write: Callable[[Path], None]) -> Path:
        """Publishes a new checkpoint and returns its path.

        Args:
            step: The number of steps of the checkpoint.
            write: Writes the files of the checkpoint into an empty folder.

        Raises:
            FolderInUse: Another job writes its checkpoints to this folder.
            OSError: The disk failed or is full. The existing checkpoints are unchanged.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        is_claimed = claim(self.path, f"job {self.job}" if self.job else f"process {os.getpid()}")
        try:
            return self._publish(step, write, is_claimed=is_claimed)
        finally:
            if not self.job:  # a program without a job may run long after its training
                release(self.path)

    def _publish(self, step: int, write: Callable[[Path], None], *, is_claimed: bool) -> Path:
        own = f"{_WRITING}{self.job or os.getpid()}-"
        # If no lock excludes other jobs, their files must not be removed.
        self._sweep(f"{_WRITING}*", f".{_LATEST}-*") if is_claimed else self._sweep(f"{own}*")
        beside = self.path / f"{own}{step}-{secrets.token_hex(4)}"
        beside.mkdir()
        try:
            write(beside)
            number = 1 + max(map(_number, published(self.path)), default=0)
            (beside / _PUBLISHED).write_text(f"{number} {self.job}\n")
            for file in beside.iterdir():
                _sync(file)
            _sync(beside)
            made = self._free_name(step)
            beside.rename(made)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        _sync(self.path)
        self._point_to(made)
        self._prune(made)
        return made

    def _sweep(self, *patterns: str) -> None:
        for left in (path for pattern in patterns for path in self.path.glob(pattern)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                with suppress(OSError):
                    left.unlink()

    def _free_name(self, step: int) -> Path:
        """An unused name for a checkpoint of ``step``; a resumed run may reach a step that already has a checkpoint."""
        name, nth = _name(step), 1
        while (made := self.path / (name if nth == 1 else f"{name}.{nth}")).exists():
            nth += 1
        return made

    def _point_to(self, made: Path) -> None:
        beside = self.path / f".{_LATEST}-{secrets.token_hex(4)}"
        with beside.open("x") as file:  # never follows a link, which another user might have created
            file.write(made.name + "\n")
        _sync(beside)
        beside.replace(self.path / _LATEST)
        _sync(self.path)

    def _prune(self, made: Path) -> None:
        for old in published(self.path)[self.keep :]:
            if old != made:  # `latest` names ``made``
                shutil.rmtree(old, ignore_errors=True)


def published(folder: Path) -> list[Path]:
    """The paths of the complete checkpoints in a folder; the checkpoint published last comes first."""
    found = [path.parent for path in folder.glob(f"step-*/{MANIFEST}")]
    return sorted(found, key=lambda path: (_number(path), path.name), reverse=True)


def _number(path: Path) -> int:
    """The sequence number of a checkpoint in its folder; 0 if it has none."""
    try:
        with (path / _PUBLISHED).open("rb") as file:
            digits = file.read(_MOST_DIGITS + 1).partition(b" ")[0].strip()
    except OSError:
        return 0
    return int(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else 0


def has_step(folder: Path, step: int) -> bool:
    """True if a folder has a complete checkpoint of step ``step``."""
    return any(_is_whole(path.parent) for path in folder.glob(f"{_name(step)}*/{MANIFEST}"))


def find(path: Path) -> Path | None:
    """The checkpoint at ``path``, or the newest one in a folder of checkpoints; ``None`` if there is none.

    Raises:
        UsageError: The checkpoint is damaged. Training never silently resumes from an older checkpoint, so the message
            names the newest complete one.
    """
    path = path.absolute()
    newest = path if (path / MANIFEST).exists() else _newest(path)
    if newest is None:
        return None
    try:
        read_manifest(newest)
    except UsageError as error:
        whole = next((str(one) for one in published(newest.parent) if one != newest and _is_whole(one)), None)
        raise UsageError(
            f"{error}; {f'{whole} is whole: resume from that path' if whole else 'no other is there'}"
        ) from error
    return newest


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _newest(folder: Path) -> Path | None:
    """The checkpoint published last; if `latest` names a missing one, the missing path, so that reading it fails."""
    pointer = folder / _LATEST
    if pointer.is_file():
        named = folder / pointer.read_text().strip()
        if not (named / MANIFEST).exists():
            return named
    return next(iter(published(folder)), None)


def _is_whole(path: Path) -> bool:
    try:
        read_manifest(path)
    except UsageError:
        return False
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        _held[folder] = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    descriptor = _held[folder]
    holder = os.pread(descriptor, _LONGEST_WRITER, 0).decode(errors="replace").strip()
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
        return os.path.samestat(os.fstat(descriptor), os.stat(folder / _LOCK))
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
