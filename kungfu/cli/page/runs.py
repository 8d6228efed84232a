"""The list of the runs in a folder, live and past, with a comparison of several, and the page of each run."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from kungfu.cli.page.app import PageApp
from kungfu.cli.page.control import JobControl
from kungfu.cli.page.feed import PageFeed
from kungfu.cli.page.files import broken, file_routes, missing, refused
from kungfu.cli.page.guard import PageLimits, is_of_this_site
from kungfu.cli.page.peer_log import PeerLogs
from kungfu.cli.page.run_model import Document, as_text, job_summary
from kungfu.cli.report.narrative import waiting_words
from kungfu.errors import KungfuError, UsageError
from kungfu.event_log.record_follower import JobWatcher
from kungfu.extras import missing as missing_extra
from kungfu.runtime.job_api.job_file import read_job_file, state_of

_MOST_RUNS, _MOST_COMPARED = 100, 8
_NEWEST_BYTES = 1 << 17
_LOOK_EVERY_S = 1.0
# Of the pages of runs, each of which holds its whole record, the one that was used last is kept longest.
_MOST_PAGES, _KEPT_UNSEEN_S = 32, 60.0
# Seconds from the request for a page to the connection that shows its updates.
_ARRIVES_WITHIN_S = 5.0


class RunList:
    """The newest runs in the folders of ``folder``; may be called from many threads."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._watchers: dict[str, JobWatcher] = {}
        self._document: Document = {}
        self._looked_at = -_LOOK_EVERY_S

    def look(self) -> Document:
        """The newest runs, latest start first, and the number of all runs; reads their records once a second."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
                names, make = run_names(self._folder), partial(JobWatcher, newest_bytes=_NEWEST_BYTES)
                watchers = {name: self._watchers.get(name) or make(self._folder / name) for name in names[:_MOST_RUNS]}
                rows = [_row(name, watcher) for name, watcher in watchers.items()]
                # A record that could not be read is read anew.
                self._watchers = {row["name"]: watchers[row["name"]] for row in rows if not row["remark"]}
                rows.sort(key=lambda row: row["began"] or 0.0, reverse=True)
                self._document = {"folder": str(self._folder.absolute()), "count": len(names), "runs": rows}
                self._looked_at = time.monotonic()
            return self._document


def run_names(folder: Path) -> list[str]:
    """The names of the folders in ``folder`` that hold a record, the most recently written one first.

    Another user's links out of ``folder`` are left out: the server may be able to read more than that user.
    """
    written, top, own = dict[str, float](), folder.resolve(), os.geteuid()
    for record in folder.glob("*/events.jsonl"):
        # The folder may be deleted meanwhile, and a name that is not UTF-8 has no URL.
        with suppress(OSError, UnicodeEncodeError):
            record.parent.name.encode()
            is_inside = Path(os.path.realpath(record)).is_relative_to(top)
            if is_inside or record.parent.lstat().st_uid == own:
                written[record.parent.name] = record.stat().st_mtime
    return sorted(written, key=lambda name: -written[name])


def _row(name: str, watcher: JobWatcher) -> Document:
    """A run of the list: its summary, its state, and the reason why its record cannot be read."""
    try:
        job, remark = watcher.look(), ""
    except UsageError as error:
        job, remark = watcher.job, str(error)
    file = None
    with suppress(UsageError):
        file = read_job_file(watcher.folder)
    state, code = state_of(file), None if file is None else file.code
    waiting = waiting_words(job, now=time.time()) if state == "running" else ""
    return {"name": name, **job_summary(job), "state": state, "code": code, "waiting": waiting, "remark": remark}


@dataclass
class _OpenPage:
    """The page of a run, and the time at which it was last requested or seen."""

    app: PageApp
    feed: PageFeed
    used_at: float

    def unseen_s(self) -> float:
        """Seconds for which no browser has shown the page, or asked for anything of it."""
        now = time.monotonic()
        if self.feed.log.viewers:
            self.used_at = now
        return now - self.used_at


class RunsApp:
    """The list of runs as an ASGI application; the page of a run is below ``run/NAME/``."""

    def __init__(self, folder: Path, *, is_ending: Callable[[], bool], limits: PageLimits) -> None:
        self._folder, self._is_ending, self._limits = folder, is_ending, limits
        self._list = RunList(folder)
        self._comparing, self._opening = threading.Lock(), threading.Lock()
        self._pages: dict[str, _OpenPage] = {}
        self._app = Starlette(
            routes=[
                *file_routes("runs.html"),
                Route("/runs.json", self._runs),
                Route("/compare.json", self._compared),
                Mount("/run/{run}", self._page),
            ],
            exception_handlers={404: missing, Exception: broken},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one HTTP request."""
        await self._app(scope, receive, send)

    async def _runs(self, request: Request) -> Response:
        text = as_text(await asyncio.to_thread(self._list.look))
        return Response(text, media_type="application/json", headers={"cache-control": "no-store"})

    async def _compared(self, request: Request) -> Response:
        """The comparison of the runs that the query names."""
        if not is_of_this_site(request):
            return refused(403, "this request comes from another site; press the button of the page itself")
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        unknown = {*names} - {*await asyncio.to_thread(run_names, self._folder)}
        if unknown or not 2 <= len(names) <= _MOST_COMPARED:
            what = f"there is no run {unknown.pop()!r}" if unknown else f"give 2 to {_MOST_COMPARED} runs"
            return refused(400, f"{what} to compare in {self._folder.absolute()}")
        try:
            document = await asyncio.to_thread(self._comparison, names)
        except UsageError as error:
            return refused(400, str(error))
        if document is None:
            return refused(429, "another comparison is being made; try again when it is done")
        return Response(as_text(document), media_type="application/json", headers={"cache-control": "no-store"})

    def _comparison(self, names: list[str]) -> Document | None:
        """The comparison of some runs; ``None`` while another one is being made."""
        # Imported here: matplotlib takes a second to load.
        from kungfu.cli.compare import compare_runs, drawn
        from kungfu.cli.png import png_of

        # One at a time: a comparison reads all steps of its runs, and those that wait would occupy all threads.
        if not self._comparing.acquire(blocking=False):
            return None
        try:
            compared = compare_runs([self._folder / name for name in names])
            notes = [f"{one.name}: {one.note}" for one in compared.figures if one.note]
            if advice := missing_extra("plots"):
                plot, notes = "", [*notes, f"no plot is drawn: it {advice}"]
            else:
                plot = base64.b64encode(png_of(drawn(compared.runs, compared.goal, over="time"))).decode()
        finally:
            self._comparing.release()
        return {"names": names, "rows": [[name, *cells] for name, cells in compared.rows().items()],
                "notes": notes, "plot": plot}  # fmt: skip

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the page of the run that its path names."""
        name = scope["path_params"]["run"]
        if name not in self._pages and name in await asyncio.to_thread(run_names, self._folder):
            try:
                await asyncio.to_thread(self._open, name)
            # The record is of another version, or cannot be read.
            except UsageError as error:
                await refused(409, str(error))(scope, receive, send)
                return
        page = self._pages.get(name)
        if page is not None:
            page.used_at = time.monotonic()
        answer: Any = page.app if page else await missing(Request(scope))
        await answer(scope, receive, send)

    def _open(self, name: str) -> None:
        """Opens the page of a run, with a thread that follows the run while somebody looks at the page."""
        folder = self._folder / name
        with self._opening:
            # Another browser has asked for the page at the same time.
            if name in self._pages:
                return
            self._make_room()
            feed = PageFeed(folder)
            feed.look()
            control = JobControl(folder, feed=feed)
            app = PageApp(feed.log, control, peer_log=PeerLogs(folder).end, limits=self._limits)
            page = self._pages[name] = _OpenPage(app, feed, time.monotonic())
            threading.Thread(target=self._follow, args=(name, page), name="kungfu-page", daemon=True).start()

    def _make_room(self) -> None:
        """Closes the page that was not seen for longest if there are many; raises ``UsageError`` if all are seen."""
        if len(self._pages) < _MOST_PAGES:
            return
        unseen = {name: page.unseen_s() for name, page in [*self._pages.items()] if not page.feed.log.viewers}
        if not unseen:
            raise UsageError(f"the pages of {_MOST_PAGES} runs are looked at already; close one of them")
        self._pages.pop(max(unseen, key=lambda name: unseen[name]), None)

    def _follow(self, name: str, page: _OpenPage) -> None:
        def is_over(timeout_s: float) -> bool:
            time.sleep(timeout_s)
            unseen_s = page.unseen_s()
            if unseen_s > _KEPT_UNSEEN_S:
                self._close(name, page)
            # A browser that was given the page before it was closed may connect yet, and is served until it leaves.
            is_left = self._pages.get(name) is not page and unseen_s > _ARRIVES_WITHIN_S
            return is_left or self._is_ending()

        try:
            page.feed.follow(is_over)
        # The record was replaced or became unreadable: its page ends, and a reload opens it again.
        except KungfuError:
            pass
        finally:
            self._close(name, page)
            page.feed.log.end()

    def _close(self, name: str, page: _OpenPage) -> None:
        """Gives the page to no further request; another page of the same run may be open by now."""
        if self._pages.get(name) is page:
            self._pages.pop(name, None)
