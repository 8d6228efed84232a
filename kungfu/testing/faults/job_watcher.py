"""A job that runs, followed by its record."""

from __future__ import annotations

from pathlib import Path

from kungfu.event_log.job import Job
from kungfu.event_log.record_follower import RecordFollower

__all__ = ["JobWatcher"]

_NEWEST_BYTES = 1 << 20


class JobWatcher:
    """Follows the files of a job's folder as they grow.

    Attributes:
        folder: The folder.
        job: The job at the last look.

    >>> from tempfile import TemporaryDirectory
    >>> lines = '{"event": "record", "version": 2}', '{"event": "spawned", "peer": 0, "pid": 7}', ""
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text(chr(10).join(lines))
    ...     JobWatcher(Path(folder)).look().joiners
    (0,)
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, Job()
        # Of the steps the newest one counts: those of a week need not be read.
        self._record = RecordFollower(folder, newest_bytes=_NEWEST_BYTES)

    def look(self) -> Job:
        """The job by now. Raises ``UsageError`` for a record of another version."""
        has_more = True
        while has_more:
            new, has_more = self._record.take(), self._record.has_more
            for event in new.events:
                self.job = self.job.after(event)
            for row in new.rows:
                self.job = self.job.after_step(row)
        return self.job
