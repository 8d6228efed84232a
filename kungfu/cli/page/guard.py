"""The checks of each HTTP request to the page, before the page answers it.

Any site that the user visits can send requests to a page on this machine. Therefore the page checks the host name in
each request, since a site may point its own name at 127.0.0.1. For requests to the job, the page also checks the site
that sent the request, and the job's secret. A content security policy restricts browsers to the page's own files and
scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


@dataclass(frozen=True)
class PageLimits:
    """The limits for browsers that show a page.

    Args:
        viewers: The maximum number of browsers at the same time.
        send_within_s: Seconds for a browser to receive data; a slower browser is disconnected, and reconnects.
    """

    viewers: int = 300
    send_within_s: float = 20.0


class GuardedApp:
    """An ASGI application behind the check of the host name, with the headers of the page in each answer.

    Args:
        is_known: Returns True if the values of a request's ``Host`` headers name this page.
    """

    def __init__(self, app: ASGIApp, *, is_known: Callable[[Sequence[str]], bool], limits: PageLimits) -> None:
        self._app, self._is_known, self._limits = app, is_known, limits

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


def is_of_this_site(request: Request) -> bool:
    """True if the page itself sent the request, according to the browser's headers, or if these headers are missing."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
