"""A page that is served in this process, and browsers that speak HTTP to it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kungfu.cli.export.listen_address import ListenAddress, listening
from kungfu.cli.export.metrics_server import ConnectionLimits
from kungfu.cli.page.app import PageLimits
from kungfu.cli.page.server import PageServer

__all__ = ["Browser", "Page", "serve_page"]

WITHIN_S = 60.0


@dataclass
class Page:
    """A page at ``port``; ``stop`` ends it as the end of the job does."""

    server: PageServer
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return self.server.port

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of an answer."""
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """The status and the object of an answer; underscores in the names of headers stand for hyphens."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = self.ask("POST", path, data, headers)
        return status, json.loads(answer)

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def coming_back(self) -> Generator[tuple[str, str, Any], None, None]:
        """The events that a browser gets which comes back whenever it is dropped, as each browser does."""
        last = ""
        while True:
            with self.browser(last=last) as browser, suppress(StreamEndedError, http.client.IncompleteRead):
                while True:
                    event = browser.event()
                    last = event[1]
                    yield event

    @contextmanager
    def browser(self, *, last: str = "") -> Iterator[Browser]:
        """A browser that looks at the updates."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        try:
            connection.request("GET", "/updates", headers={"Last-Event-ID": last} if last else {})
            yield Browser(connection.getresponse())
        finally:
            connection.close()


class StreamEndedError(Exception):
    """The page has ended the stream."""


class Browser:
    """Reads server-sent events."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def event(self) -> tuple[str, str, Any]:
        """The next event: its kind, its id and its data."""
        fields: dict[str, str] = {}
        while True:
            line = self._answer.readline().decode().rstrip("\n")
            if not line and "event" in fields:
                return fields["event"], fields.get("id", ""), json.loads(fields["data"])
            name, separator, value = line.partition(": ")
            if not line and self._answer.isclosed():
                raise StreamEndedError
            fields |= {name: value} if separator else {}

    def until(self, look: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The data of the first event that ``look`` accepts."""
        while True:
            *_, data = self.event()
            if look(data):
                return data


@contextmanager
def serve_page(
    folder: Path,
    *,
    limits: PageLimits | None = None,
    quiet: ConnectionLimits | None = None,
    look_every_s: float = 0.02,
) -> Iterator[Page]:
    """A page of the run in ``folder``; it looks at the record more often than a job's does."""
    page = Page(PageServer(folder, listening(ListenAddress("127.0.0.1", 0)), limits=limits, quiet=quiet))
    thread = threading.Thread(target=page.server.run, args=(lambda timeout_s: page.stop.wait(look_every_s),))
    thread.start()
    try:
        yield page
    finally:
        page.stop.set()
        thread.join(WITHIN_S)
        assert not thread.is_alive()
