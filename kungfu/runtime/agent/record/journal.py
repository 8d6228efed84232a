"""The job's folder: what was decided, what was measured, what the peers printed.

``events.jsonl`` one object for every decision and change; ``metrics.jsonl`` one for every step (rank 0's);
``peers/peer-N.log`` the whole output of a peer; ``trace.jsonl`` what each step offered to the policies, on every peer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kungfu.errors import UsageError

__all__ = ["TRACE_LIMIT_BYTES", "Journal"]

STREAMS = ("events", "metrics")

# Some hundred thousand steps of a few peers.
TRACE_LIMIT_BYTES = 256 << 20


class Journal:
    """Appends to the files of one job; every line is flushed, so that a killed job leaves a whole story.

    The trace ends, with a line that says so, before it grows beyond ``trace_limit_bytes``; at 0 there is none.
    """

    def __init__(
        self, folder: Path, *, trace_limit_bytes: int = TRACE_LIMIT_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder, self._clock = folder, clock
        self._lock = threading.Lock()
        self._trace_left = self._trace_limit = trace_limit_bytes
        if (folder / "events.jsonl").exists():
            raise UsageError(f"--logdir {folder} holds the record of a run already; delete it or give another folder")
        try:
            (folder / "peers").mkdir(parents=True, exist_ok=True)
            names = (*STREAMS, "trace") if trace_limit_bytes else STREAMS
            self._files: dict[str, IO[str]] = {name: (folder / f"{name}.jsonl").open("w") for name in names}
        except OSError as error:
            raise UsageError(f"--logdir {folder}: {error.strerror}; give a folder that can be written") from error

    def log_of(self, peer: int) -> Path:
        """Where the output of a peer goes."""
        return self.folder / "peers" / f"peer-{peer}.log"

    def write(self, stream: str, fields: Mapping[str, Any]) -> str:
        """One more line of a stream, stamped with the time (seconds since 1970); gives the line."""
        with self._lock:  # the agent and the threads that serve the peers all write
            line = json.dumps({"time": round(self._clock(), 6), **fields})
            self._files[stream].write(f"{line}\n")
            self._files[stream].flush()
        return line

    def append(self, stream: str, lines: Sequence[str]) -> None:
        """More lines of a stream, as they are; of the trace only as long as it may grow."""
        if not lines or stream not in self._files:
            return
        with self._lock:
            self._files[stream].writelines(f"{line}\n" for line in lines if stream != "trace" or self._fits(line))
            self._files[stream].flush()

    def _fits(self, line: str) -> bool:
        left, self._trace_left = self._trace_left, self._trace_left - len(line.encode()) - 1
        if self._trace_left < 0 <= left:
            self._files["trace"].write(json.dumps({"cut": True, "limit_bytes": self._trace_limit}) + "\n")
        return self._trace_left >= 0

    def close(self) -> None:
        """Closes the files; idempotent."""
        for file in self._files.values():
            file.close()
