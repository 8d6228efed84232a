"""The HTTP interface of the page: its files, its updates, and requests to the job, checked before they are sent.

Any site that the user visits can send requests to a page on this machine. Therefore the page checks the host name in
each request, since a site may point its own name at 127.0.0.1. For requests to the job, the page also checks the site
that sent the request, and the job's secret. A content security policy restricts browsers to the page's own files and
scripts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kungfu.cli.page.control import JobControl, request_of
from kungfu.cli.page.event_stream import EventStream, UpdateLog, WakeUp
from kungfu.errors import KungfuError, UsageError
from kungfu.runtime.core.request import Asked
from kungfu.runtime.job_api.client import JobOver

SECRET_HEADER = "kungfu-secret"
_LONGEST_BODY = 4096
# The limit of simultaneous requests to the job.
_MOST_ASKED = 4
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

Answerer = Callable[[Asked], dict[str, Any]]


@dataclass(frozen=True)
class PageLimits:
    """The limits for browsers that show a page.

    Args:
        viewers: The maximum number of browsers at the same time.
        send_within_s: Seconds for a browser to receive data; a slower browser is disconnected, and reconnects.
    """

    viewers: int = 300
    send_within_s: float = 20.0


class PageApp:
    """The page as an ASGI application.

    Args:
        log: The updates of the page.
        control: Submits requests to the job.
        is_known: Returns True if the values of a request's ``Host`` headers name this page.
        limits: The limits for browsers.
    """

    def __init__(
        self, log: UpdateLog, control: JobControl, *, is_known: Callable[[Sequence[str]], bool], limits: PageLimits
    ) -> None:
        self._log, self._control, self._is_known, self._limits = log, control, is_known, limits
        paths = [path for path in sorted(_FOLDER.rglob("*")) if path.suffix in _TYPES]
        self._files = {path.relative_to(_FOLDER).as_posix(): _read(path) for path in paths}
        self._waking: WakeUp | None = None
        self._asking = asyncio.Semaphore(_MOST_ASKED)
        self._app: ASGIApp = Starlette(
            routes=[
                Route("/", self._file, name="index"),
                Route("/static/{name:path}", self._file),
                Route("/updates", self._updates),
                Route("/run.json", self._whole),
                Route("/plan", partial(self._answered, answer=control.plan), methods=["POST"]),
                Route("/requests", partial(self._answered, answer=control.submit), methods=["POST"]),
            ],
            exception_handlers={404: _missing, Exception: _broken},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one HTTP request; ignores other protocols."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            async with asyncio.timeout(self._limits.send_within_s):
                await send(message)

        hosts = Request(scope).headers.getlist("host")
        if not self._is_known(hosts):
            wrong = PlainTextResponse(
                f"this page is not known as {', '.join(hosts)!r}: ask for it by the address that kungfu printed\n", 421
            )
            await wrong(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    # ---- the page and its updates ------------------------------------------------------------------------------------

    async def _file(self, request: Request) -> Response:
        """A file of the page; status 304 if the browser already has the file, 404 if the page has no such file."""
        file = self._files.get(request.path_params.get("name", "index.html"))
        if file is None:
            return await _missing(request)
        content, kind, tag = file
        # Revalidated each time: another version of kungfu may serve another page at this port.
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    async def _whole(self, request: Request) -> Response:
        """The whole state as one JSON object, for programs; waits until the record has been read once."""
        while True:
            woken, is_over = self._streams().next(), self._log.is_over
            if (missed := self._log.missed(None)) is not None or is_over:
                break
            await woken.wait()
        _, _, text = (missed.data if missed else b"").partition(b"data: ")
        return Response(text.strip(), media_type="application/json", headers={"cache-control": "no-store"})

    async def _updates(self, request: Request) -> Any:
        if self._log.viewers >= self._limits.viewers:
            text = f"{self._limits.viewers} browsers look at this page already, and it takes no more; try again later\n"
            return PlainTextResponse(text, 503, headers={"retry-after": "30"})
        last = request.headers.get("last-event-id", "")
        return EventStream(self._log, self._streams(), last=last)

    def _streams(self) -> WakeUp:
        """The `WakeUp` that wakes the waiting streams; created in the event loop that serves the page."""
        if self._waking is None:
            self._waking = WakeUp()
            self._log.on_update(self._waking.from_thread)
        return self._waking

    # ---- requests to the job -----------------------------------------------------------------------------------------

    async def _answered(self, request: Request, answer: Answerer) -> Response:
        """The answer of the job to a request, after the checks of the site, the secret and the body."""
        if not _is_of_this_site(request):
            return _refused(403, "this request comes from another site; press the buttons of the page itself")
        try:
            known = self._control.knows(request.headers.get(SECRET_HEADER, ""))
        except UsageError as error:
            return _refused(409, str(error))
        if not known:
            return _refused(
                403, "this is not the job's secret: `kungfu page --secret RUN` prints it, for the user who started it"
            )
        try:
            wanted = request_of(json.loads(await _body(request)))
        except (ValueError, RecursionError):
            return _refused(400, "the request is no JSON object of some bytes")
        except UsageError as error:
            return _refused(400, str(error))
        try:
            async with self._asking:
                return JSONResponse(await asyncio.to_thread(answer, wanted), headers={"cache-control": "no-store"})
        except JobOver as error:
            return _refused(409, str(error))
        # The job refuses the request, or does not answer, for example during an election.
        except KungfuError as error:
            return _refused(400 if isinstance(error, UsageError) else 503, str(error))


async def _body(request: Request) -> bytes:
    """The body of a request; raises ``ValueError`` if it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise ValueError("too long")
    return body


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status, headers={"cache-control": "no-store"})


async def _missing(request: Request, error: Exception | None = None) -> Response:
    return PlainTextResponse(f"there is no such page; that of the run is at {request.base_url}\n", 404)


async def _broken(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"the page has an error of its own: {type(error).__name__}\n", 500)


def _is_of_this_site(request: Request) -> bool:
    """True if the page itself sent the request, according to the browser's headers, or if these headers are missing."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


def _read(path: Path) -> tuple[bytes, str, str]:
    """A file's content, its media type, and an ETag of the content."""
    content = path.read_bytes()
    return content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"'
