"""The job's folder: what was decided, what was measured, what the peers printed.

``events.jsonl`` one object for every decision and change; ``metrics.jsonl`` one for every step (rank 0's);
``peers/peer-N.log`` the whole output of a peer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from kungfu.errors import UsageError

__all__ = ["Journal"]

STREAMS = ("events", "metrics")


class Journal:
    """Appends to the files of one job; every line is flushed, so that a killed job leaves a whole story."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder, self._clock = folder, clock
        self._lock = threading.Lock()
        if (folder / "events.jsonl").exists():
            raise UsageError(f"--logdir {folder} holds the record of a run already; delete it or give another folder")
        try:
            (folder / "peers").mkdir(parents=True, exist_ok=True)
            self._files: dict[str, IO[str]] = {name: (folder / f"{name}.jsonl").open("w") for name in STREAMS}
        except OSError as error:
            raise UsageError(f"--logdir {folder}: {error.strerror}; give a folder that can be written") from error

    def log_of(self, peer: int) -> Path:
        """Where the output of a peer goes."""
        return self.folder / "peers" / f"peer-{peer}.log"

    def write(self, stream: str, fields: Mapping[str, Any]) -> None:
        """One more line of a stream, stamped with the time (seconds since 1970)."""
        with self._lock:  # the agent and the threads that serve the peers all write
            self._files[stream].write(json.dumps({"time": round(self._clock(), 6), **fields}) + "\n")
            self._files[stream].flush()

    def close(self) -> None:
        """Closes the files; idempotent."""
        for file in self._files.values():
            file.close()
