"""The ends of the peers' logs, for the page: plain text without control characters and without the job's secret."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from kungfu.cli.console.log_filter import is_startup_noise, sanitize
from kungfu.errors import UsageError
from kungfu.event_log.growing_file import open_regular
from kungfu.runtime.job_api.job_file import read_job_file

LINES = 100
_BYTES = 1 << 17
# A program may print its environment, with a secret that hosts share beyond the end of a job.
_SECRET = re.compile(r"(?i)(secret\W{1,8})[0-9a-f]{32,}")
_HIDDEN = "(the secret is not shown)"


class PeerLogs:
    """The logs of the peers of a run on this host; anyone who sees the page may read their ends."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._secret = folder, ""

    def end(self, peer: str) -> str:
        """The last `LINES` lines of the log of a peer, without TensorFlow's start-up noise; long lines may leave fewer.

        Raises ``UsageError`` if there is no such log on this host."""
        peers = self._folder / "peers"
        path = peers / f"peer-{peer if peer.isdecimal() and peer.isascii() and len(peer) < 10 else '?'}.log"
        try:
            # In another user's record a link may lead to a file that only the viewer of the page may read.
            if not path.resolve(strict=True).is_relative_to(self._folder.resolve()):
                raise FileNotFoundError(path)
            with open_regular(path) as file:
                start = max(0, file.seek(0, 2) - _BYTES)
                file.seek(start)
                lines = file.read(_BYTES).decode(errors="replace").rstrip("\n").split("\n")
        except (OSError, RuntimeError) as error:
            where = "it has printed nothing yet, or its log is on the host that it ran on"
            raise UsageError(f"{peers.absolute()} holds no log of peer {peer[:20]}: {where}") from error
        # The first line is cut, except if it is the only one.
        whole = lines[1:] if start and len(lines) > 1 else lines
        shown = [sanitize(line, encoding="utf-8") for line in whole if not is_startup_noise(line)]
        return self._without_secret("\n".join(shown[-LINES:]))

    def _without_secret(self, text: str) -> str:
        # A job that is over has no secret in its file any more, but an earlier call may have read it.
        with suppress(UsageError):
            self._secret = read_job_file(self._folder).secret or self._secret
        if self._secret:
            text = re.sub(re.escape(self._secret), _HIDDEN, text, flags=re.IGNORECASE)
        return _SECRET.sub(rf"\1{_HIDDEN}", text)
