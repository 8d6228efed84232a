"""The files of the page, and the answers that all its applications share."""

from __future__ import annotations

import hashlib
from functools import cache, partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


def file_routes(index: str) -> list[Route]:
    """The routes of the page's files, with ``index`` as the file of the root."""
    return [
        Route("/", partial(_file, index=index), name="index"),
        Route("/static/{file:path}", partial(_file, index=index)),
    ]


def refused(status: int, why: str) -> JSONResponse:
    """An answer that a request is refused, with the reason."""
    return JSONResponse({"error": why}, status, headers={"cache-control": "no-store"})


async def missing(request: Request, error: Exception | None = None) -> Response:
    """The answer for a path without a page."""
    return PlainTextResponse(f"there is no such page; that of the run is at {request.base_url}\n", 404)


async def broken(request: Request, error: Exception) -> Response:
    """The answer for an error in the page itself."""
    return PlainTextResponse(f"the page has an error of its own: {type(error).__name__}\n", 500)


async def _file(request: Request, index: str) -> Response:
    """A file of the page; status 304 if the browser already has the file, 404 if the page has no such file."""
    file = _files().get(request.path_params.get("file", index))
    if file is None:
        return await missing(request)
    content, kind, tag = file
    # Revalidated each time: another version of kungfu may serve another page at this port.
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """The content of each file, its media type, and an ETag of the content, by name."""
    paths = [path for path in sorted(_FOLDER.rglob("*")) if path.suffix in _TYPES]
    return {path.relative_to(_FOLDER).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> tuple[bytes, str, str]:
    content = path.read_bytes()
    return content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"'
