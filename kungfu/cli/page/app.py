"""The HTTP interface of a run's page: its files, updates, the logs of its peers, and requests to the job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kungfu.cli.page.control import JobControl, request_of
from kungfu.cli.page.event_stream import EventStream, UpdateLog, WakeUp
from kungfu.cli.page.files import broken, file_routes, missing, refused
from kungfu.cli.page.guard import PageLimits, is_of_this_site
from kungfu.errors import KungfuError, UsageError
from kungfu.runtime.core.request import Asked
from kungfu.runtime.job_api.client import JobOver

SECRET_HEADER = "kungfu-secret"
_LONGEST_BODY = 4096
# The limit of simultaneous requests to the job.
_MOST_ASKED = 4

Answerer = Callable[[Asked], dict[str, Any]]


class PageApp:
    """The page of a run as an ASGI application."""

    def __init__(
        self, log: UpdateLog, control: JobControl, *, peer_log: Callable[[str], str], limits: PageLimits
    ) -> None:
        self._log, self._control, self._peer_log, self._limits = log, control, peer_log, limits
        self._waking: WakeUp | None = None
        self._asking = asyncio.Semaphore(_MOST_ASKED)
        self._app = Starlette(
            routes=[
                *file_routes("index.html"),
                Route("/updates", self._updates),
                Route("/run.json", self._whole),
                Route("/logs/{peer}", self._peer_log_end),
                Route("/plan", partial(self._answered, answer=control.plan), methods=["POST"]),
                Route("/requests", partial(self._answered, answer=control.submit), methods=["POST"]),
            ],
            exception_handlers={404: missing, Exception: broken},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one HTTP request."""
        await self._app(scope, receive, send)

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

    async def _peer_log_end(self, request: Request) -> Response:
        try:
            text, status = await asyncio.to_thread(self._peer_log, request.path_params["peer"]), 200
        except UsageError as error:
            text, status = f"{error}\n", 404
        return PlainTextResponse(text, status, headers={"cache-control": "no-store"})

    def _streams(self) -> WakeUp:
        """The `WakeUp` that wakes the waiting streams; created in the event loop that serves the page."""
        if self._waking is None:
            self._waking = WakeUp()
            self._log.on_update(self._waking.from_thread)
        return self._waking

    async def _answered(self, request: Request, answer: Answerer) -> Response:
        """The answer of the job to a request, after the checks of the site, the secret and the body."""
        if not is_of_this_site(request):
            return refused(403, "this request comes from another site; press the buttons of the page itself")
        try:
            known = self._control.knows(request.headers.get(SECRET_HEADER, ""))
        except UsageError as error:
            return refused(409, str(error))
        if not known:
            return refused(
                403, "this is not the job's secret: `kungfu page --secret RUN` prints it, for the user who started it"
            )
        try:
            wanted = request_of(json.loads(await _body(request)))
        except (ValueError, RecursionError):
            return refused(400, "the request is no JSON object of some bytes")
        except UsageError as error:
            return refused(400, str(error))
        try:
            async with self._asking:
                return JSONResponse(await asyncio.to_thread(answer, wanted), headers={"cache-control": "no-store"})
        except JobOver as error:
            return refused(409, str(error))
        # The job refuses the request, or does not answer, for example during an election.
        except KungfuError as error:
            return refused(400 if isinstance(error, UsageError) else 503, str(error))


async def _body(request: Request) -> bytes:
    """The body of a request; raises ``ValueError`` if it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise ValueError("too long")
    return body
