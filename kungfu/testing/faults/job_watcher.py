"""A job that runs, followed by its record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kungfu.event_log.codec import event_in
from kungfu.event_log.growing_file import GrowingFile
from kungfu.event_log.job import Job

__all__ = ["JobWatcher"]

_NEWEST_BYTES = 1 << 20


class JobWatcher:
    """Follows the files of a job's folder as they grow.

    Attributes:
        folder: The folder.
        job: The job at the last look.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text('{"event": "spawned", "peer": 0, "pid": 7}' + chr(10))
    ...     JobWatcher(Path(folder)).look().joiners
    (0,)
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, Job()
        self._events = GrowingFile(folder / "events.jsonl")
        # Of the steps the newest one counts: those of a week need not be read.
        self._metrics = GrowingFile(folder / "metrics.jsonl", at_first_bytes=_NEWEST_BYTES)

    def look(self) -> Job:
        """The job by now."""
        for line in self._events.read_all():
            if (event := event_in(line)) is not None:
                self.job = self.job.after(event)
        for row in _objects(self._metrics.read_all()):
            self.job = self.job.after_step(row)
        return self.job


def _objects(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
