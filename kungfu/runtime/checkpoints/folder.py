"""A folder of checkpoints: each is written under a temporary name, made durable, and only then renamed.

``DIR/step-00000120/`` is complete as soon as it has that name, and ``DIR/latest`` names the newest checkpoint. If a
writer is killed or the disk is full during a write, all existing checkpoints and ``latest`` remain unchanged. The next
writer removes the files of a killed writer; a writer that was merely slow then lacks its files, and publishes nothing.

``DIR/NAME``, such as ``DIR/best``, is a link to the numbered checkpoint that was published under that name last. The
link is replaced in one step, and its checkpoint is kept in addition to the newest ones.

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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import UsageError
from kungfu.runtime.checkpoints.manifest import MANIFEST, read_manifest

_LATEST = "latest"
_WRITING, _LINKING = ".writing-", ".linking-"
_NUMBERED = "step-"
_PUBLISHED = "published"  # a file in each checkpoint, with its number and the job
_MOST_DIGITS = 18
_LOCK = ".lock"
_LONGEST_WRITER = 256
_WRITES = "writes its checkpoints there, and two jobs would remove each other's"
_held: dict[Path, int] = {}  # file descriptors of this process, by lock


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder of the newest ``keep`` checkpoints of ``job``, and of named ones; ``job`` is empty without a job."""

    path: Path
    keep: int = 3
    job: str = ""

    def publish(self, step: int, write: Callable[[Path], None], *, names: Sequence[str] = ()) -> Path:
        """Publishes a new checkpoint and returns its path.

        Args:
            write: Writes the files of the checkpoint into an empty folder.
            names: The names that the checkpoint takes over from earlier ones.

        Raises:
            FolderInUse: Another job writes its checkpoints to this folder.
            OSError: The disk failed or is full. The existing checkpoints are unchanged.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        is_claimed = claim(self.path, f"job {self.job}" if self.job else f"process {os.getpid()}")
        try:
            return self._publish(step, write, names, is_claimed=is_claimed)
        finally:
            if not self.job:  # a program without a job may run long after its training
                release(self.path)

    def adopt_names(self, folder: Path) -> None:
        """Takes over the names in another folder, such as that of a resumed run, that are not yet in this folder."""
        for name in names_in(folder):
            if not os.path.lexists(self.path / name):
                self.path.mkdir(parents=True, exist_ok=True)
                self._name(name, str((folder / name).resolve()))

    def _publish(self, step: int, write: Callable[[Path], None], names: Sequence[str], *, is_claimed: bool) -> Path:
        own = f"{_WRITING}{self.job or os.getpid()}-"
        # If no lock excludes other jobs, their files must not be removed.
        self._sweep(f"{_WRITING}*", f"{_LINKING}*", f".{_LATEST}-*") if is_claimed else self._sweep(f"{own}*")
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
        for name in names:
            self._name(name, made.name)
        self._prune(made)
        return made

    def _sweep(self, *patterns: str) -> None:
        for left in (path for pattern in patterns for path in self.path.glob(pattern)):
            if left.is_dir() and not left.is_symlink():
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

    def _name(self, name: str, target: str) -> None:
        """Makes ``name`` a link to a checkpoint, in place of the checkpoint that has the name now."""
        beside = self.path / f"{_LINKING}{secrets.token_hex(4)}"
        beside.symlink_to(target)
        try:
            beside.replace(self.path / name)
        except OSError:  # a folder that kungfu did not make has this name
            beside.unlink()
            raise
        _sync(self.path)

    def _prune(self, made: Path) -> None:
        # `latest` names ``made``.
        kept = {made.resolve(), *((self.path / name).resolve() for name in names_in(self.path))}
        for old in published(self.path)[self.keep :]:
            if old.resolve() not in kept:
                shutil.rmtree(old, ignore_errors=True)


def published(folder: Path) -> list[Path]:
    """The paths of the complete checkpoints in a folder; the checkpoint published last comes first."""
    found = [path.parent for path in folder.glob(f"{_NUMBERED}*/{MANIFEST}")]
    return sorted(found, key=lambda path: (_number(path), path.name), reverse=True)


def names_in(folder: Path) -> list[str]:
    """The names of the complete checkpoints in a folder, besides their numbers."""
    names = (path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
    return sorted(name for name in names if not name.startswith((_NUMBERED, ".")))


def find_named(folder: Path, name: str) -> Path:
    """The numbered checkpoint that has a name now; its path stays valid if another checkpoint takes over the name.

    Raises ``UsageError`` if there is no checkpoint of that name."""
    if not os.path.lexists(folder / name):
        known = ", ".join(names_in(folder))
        raise UsageError(f"there is no checkpoint {name!r} in {folder}" + (f"; named there: {known}" if known else ""))
    return (folder / name).resolve()


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
    """The checkpoint at ``path``, by number or name, or the newest one in a folder; ``None`` if there is none.

    Raises:
        UsageError: The checkpoint is damaged. Training never silently resumes from an older checkpoint, so the message
            names the newest complete one.
    """
    path = path.absolute()
    # A name is resolved once, since a job may give the name to another checkpoint.
    is_named = path.is_symlink() and (path.resolve().name.startswith(_NUMBERED) or (path / MANIFEST).exists())
    path = path.resolve() if is_named else path
    newest = path if is_named or (path / MANIFEST).exists() else _newest(path)
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


def newest_whole(folder: Path, jobs: Collection[str]) -> tuple[Path | None, list[Path]]:
    """The newest complete checkpoint that one of ``jobs`` has written to a folder, and the newer ones that are damaged.

    A checkpoint whose files have the right sizes counts as complete; their contents are checked when they are loaded.
    """
    damaged = list[Path]()
    paths = [path.parent for path in folder.glob(f"{_NUMBERED}*/{_PUBLISHED}")]
    for path in sorted(paths, key=_number, reverse=True):
        if _job(path) not in jobs:
            continue
        if _is_whole(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


def _job(path: Path) -> str:
    """The job that wrote a checkpoint; empty if it is not known."""
    try:
        return (path / _PUBLISHED).read_text(errors="replace").partition(" ")[2].strip()
    except OSError:
        return ""


def _name(step: int) -> str:
    return f"{_NUMBERED}{step:08d}"


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
    """Another job uses the folder."""


def claim(folder: Path, writer: str, *, lock: str = _LOCK, what: str = _WRITES) -> bool:
    """Claims a folder for a job until this process ends or calls `release`; creates the folder if it is missing.

    Args:
        writer: The job; processes with the same writer share the claim.
        lock: The name of the file that is locked: claims of different locks are independent.

    Returns:
        True if no other job can claim the folder; False if the file system has no locks or denies this user a lock.

    Raises:
        FolderInUse: Another job has claimed the folder; the error names that job's ``writer``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            _share(folder / lock, writer, what)
    except OSError:
        return False
    return True


def release(folder: Path) -> None:
    """Releases this process's claim on a folder, if there is one."""
    _close(folder / _LOCK)


def _close(lock: Path) -> None:
    if (descriptor := _held.pop(lock, None)) is not None:
        os.close(descriptor)


def _share(lock: Path, writer: str, what: str) -> None:
    if lock not in _held or not _is_in_place(_held[lock], lock):
        _close(lock)
        _held[lock] = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    descriptor = _held[lock]
    holder = os.pread(descriptor, _LONGEST_WRITER, 0).decode(errors="replace").strip()
    try:
        if holder != writer:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{writer}\n".encode(), 0)
        fcntl.lockf(descriptor, fcntl.LOCK_SH)
    # Another job holds the lock.
    except BlockingIOError:
        _close(lock)
        raise FolderInUse(
            f"{lock.parent} is in use: {holder} {what}; give another folder, or wait for the end of that job"
        ) from None
    except OSError:
        _close(lock)
        raise


def _is_in_place(descriptor: int, lock: Path) -> bool:
    """True if the folder has not been replaced since it was claimed."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock))
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
