"""The files of the page, which are part of this package: read once, and nothing else is ever served."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

__all__ = ["StaticFiles"]

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class _File:
    """A file in memory, with what names its content."""

    content: bytes
    kind: str
    tag: str


class StaticFiles:
    """The files by their paths; a path that is not among them is none, so that no path leads outside."""

    def __init__(self) -> None:
        paths = [path for path in sorted(_FOLDER.rglob("*")) if path.suffix in _TYPES]
        self._files = {path.relative_to(_FOLDER).as_posix(): _read(path) for path in paths}

    def response(self, name: str, request: Request) -> Response:
        """A file, or that a browser has it already; 404 for any other name."""
        file = self._files.get(name)
        if file is None:
            return PlainTextResponse("there is no such page\n", 404)
        # Asked about each time: another version of kungfu may serve another page at this port.
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
