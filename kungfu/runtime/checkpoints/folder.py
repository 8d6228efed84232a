"""A folder of checkpoints: each is written under another name, made durable, and only then given its own.

``DIR/step-00000120/`` is whole as soon as it has that name, and ``DIR/latest`` names the newest one. A kill or
a full disk while another one is written leaves both as they are. The next writer removes the files of a killed one, so
a writer that was only late finds nothing to publish.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import UsageError
from kungfu.runtime.checkpoints.manifest import MANIFEST, read_manifest

__all__ = ["CheckpointFolder", "find", "published"]

_LATEST = "latest"
_WRITING = ".writing-"


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder of checkpoints, of which the newest ``keep`` stay."""

    path: Path
    keep: int = 3

    def publish(self, step: int, write: Callable[[Path], None]) -> Path:
        """Publishes a new checkpoint and returns its path.

        Args:
            step: How many steps it is of.
            write: Fills an empty folder.

        Raises:
            OSError: The disk failed or is full. The checkpoints that are there stay as they are.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._sweep()
        beside = self.path / f"{_WRITING}{step}-{os.getpid()}"
        beside.mkdir()
        try:
            write(beside)
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
        self._prune()
        return made

    def _sweep(self) -> None:
        for left in self.path.glob(f"{_WRITING}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _free_name(self, step: int) -> Path:
        """A name for a checkpoint of ``step``: a resumed run may pass a step again of which there is one."""
        name, nth = _name(step), 1
        while (made := self.path / (name if nth == 1 else f"{name}.{nth}")).exists():
            nth += 1
        return made

    def _point_to(self, made: Path) -> None:
        beside = self.path / f".{_LATEST}-{os.getpid()}"
        beside.write_text(made.name + "\n")
        _sync(beside)
        beside.replace(self.path / _LATEST)
        _sync(self.path)

    def _prune(self) -> None:
        for old in published(self.path)[self.keep :]:
            shutil.rmtree(old, ignore_errors=True)


def published(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    found = [path.parent for path in folder.glob(f"step-*/{MANIFEST}")]
    return sorted(found, key=lambda path: ((path / MANIFEST).stat().st_mtime_ns, path.name), reverse=True)


def has_step(folder: Path, step: int) -> bool:
    """Whether a folder has a whole checkpoint of so many steps."""
    return any(_is_whole(path.parent) for path in folder.glob(f"{_name(step)}*/{MANIFEST}"))


def find(path: Path) -> Path | None:
    """The checkpoint at ``path``, or the newest one in a folder of checkpoints; ``None`` if there is none.

    Raises:
        UsageError: The checkpoint is damaged. Training never goes back to an older one silently, so the message names
            the newest one that is whole.
    """
    path = path.absolute()
    newest = path if (path / MANIFEST).exists() else _named_latest(path)
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


def _named_latest(folder: Path) -> Path | None:
    pointer = folder / _LATEST
    if pointer.is_file():
        return folder / pointer.read_text().strip()
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
