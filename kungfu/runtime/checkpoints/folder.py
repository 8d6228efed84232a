"""A folder of checkpoints: each is written beside, made durable, and only then given its name.

``DIR/step-00000120/`` is whole as soon as it has that name, and ``DIR/latest`` names the newest one. Whatever happens
while another is written (a kill, a full disk), both stay as they are. What a killed writer left behind is removed by
the next one, so a writer that was only late finds nothing to give a name to.
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
    """Where checkpoints go; the newest ``keep`` of them stay."""

    path: Path
    keep: int = 3

    def publish(self, step: int, write: Callable[[Path], None]) -> Path:
        """Lets ``write`` fill an empty folder, and makes it the newest checkpoint; gives its path.

        Raises ``OSError`` if the disk does not take it; the checkpoints that are there stay as they are.
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
        """A run that was resumed may pass a step again, of which there is a checkpoint already."""
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
    """Whether a whole checkpoint of a folder is of so many steps."""
    return any(_is_whole(path.parent) for path in folder.glob(f"{_name(step)}*/{MANIFEST}"))


def find(path: Path) -> Path | None:
    """The checkpoint that ``path`` is, or the newest one of the folder that it is; ``None`` where there is none.

    Raises ``UsageError`` for one that is damaged: training is never taken back to an older one silently, so the
    message names the newest one that is whole.
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
