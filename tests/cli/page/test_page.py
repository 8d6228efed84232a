"""The page over HTTP: what browsers get, what is refused, and what becomes of those that are many, slow, or gone."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.export.listen_address import ListenAddress, listening
from kungfu.cli.export.metrics_server import ConnectionLimits
from kungfu.cli.page.guard import PageLimits
from kungfu.cli.page.server import PageServer
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.core.cluster.cluster import Hosts
from kungfu.runtime.core.request import Resize, SetLimits, StopTraining
from kungfu.runtime.job_api.job_file import end_job_file
from tests.cli.recorded import GROWN, measured, written
from tests.event_log.made import made
from tests.jobs.harness import awaited
from tests.runtime.job_api.served_job import SECRET, serve_job

HOSTILE = "<img src=x onerror=alert(1)>"
ROW = {"step": 40, "epoch": 1, "size": 2, "batch": 32, "loss": 0.5, "samples_per_s": 128.0}


# ---- a page that is served in this process, and browsers that speak HTTP to it ---------------------------------------

WITHIN_S = 60.0


@dataclass
class Client:
    """A program that speaks HTTP to a page at ``port``."""

    port: int

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


@dataclass
class Page(Client):
    """A page; ``stop`` ends it as the end of the job does."""

    server: PageServer
    stop: threading.Event = field(default_factory=threading.Event)

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
    server = PageServer(folder, listening(ListenAddress("127.0.0.1", 0)), limits=limits, quiet=quiet)
    page = Page(server.port, server)
    thread = threading.Thread(target=page.server.run, args=(lambda timeout_s: page.stop.wait(look_every_s),))
    thread.start()
    try:
        yield page
    finally:
        page.stop.set()
        thread.join(WITHIN_S)
        assert not thread.is_alive()


# ---- answers and updates ---------------------------------------------------------------------------------------------


def appended(folder: Path, name: str, *lines: str) -> None:
    with (folder / name).open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def test_every_answer_has_the_policy_and_the_page_needs_nothing_but_its_own_files(tmp_path: Path) -> None:
    missing = ("/nothing", "/static/../server.py", "/static/%2e%2e/app.py", "/static/", "/static/main.py")
    with serve_page(written(tmp_path, GROWN, metrics=[measured(1)])) as page:
        for path in ("/", "/static/main.js", "/run.json", *missing):
            _, headers, _ = page.get(path)
            names = ("x-content-type-options", "referrer-policy", "x-frame-options")
            assert [headers[name] for name in names] == ["nosniff", "no-referrer", "DENY"]
            policy = headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} < {*policy}
        status, headers, index = page.get("/")
        html = index.decode()
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=|javascript:|https?://", html)
        paths = re.findall(r'(?:src|href)="([^"#]+)"', html)
        for path in paths:  # grows: modules import modules
            text = page.get(f"/{path}")[2].decode()
            paths += {f"static/{one}" for one in re.findall(r'^import .* from "\./([^"]+)"', text, re.M)} - {*paths}
        assert {"static/main.js", "static/charts.js", "static/vendor/uPlot.esm.js"} <= {*paths}
        for path in paths:
            status, headers, _ = page.get(f"/{path}")
            assert status == 200, path
            assert page.get(f"/{path}", if_none_match=headers["etag"])[0] == 304
        for path in missing:
            status, headers, text = page.get(path)
            assert (status, headers["content-type"]) == (404, "text/plain; charset=utf-8"), path
            assert text.decode() == f"there is no such page; that of the run is at http://127.0.0.1:{page.port}/\n"


def test_a_browser_gets_the_whole_then_what_changes_and_after_a_loss_what_it_missed(tmp_path: Path) -> None:
    written(tmp_path, GROWN[:5], metrics=[measured(step) for step in range(1, 4)])
    with serve_page(tmp_path) as page, page.browser() as browser:
        kind, _, whole = browser.event()
        assert (kind, whole["curves"]["steps"], whole["run"]["newest"]["step"]) == ("snapshot", [1, 2, 3], 3)
        appended(tmp_path, "metrics.jsonl", json.dumps(measured(4, size=3)))
        kind, last, update = browser.event()
        assert (kind, update["curves"]["from"], update["curves"]["steps"]) == ("update", 3, [4])
        assert "items" not in update
        appended(tmp_path, "events.jsonl", event_to_line(made(event="view", version=2, peers=[0, 1, 2])))
        update = browser.until(lambda data: "items" in data)
        assert update["items"][0]["headline"] == "view 2 is in force, 3 peers: peers 0, 1 and 2"
        assert [(row["id"], row["rank"]) for row in update["peers"]] == [(0, 0), (1, 1), (2, 2)]
        with page.browser(last=last) as again:
            kind, _, missed = again.event()
            assert (kind, missed["items"]) == ("update", update["items"])
        for unknown in ("0123abcd.1", "nonsense", "9" * 5000):
            with page.browser(last=unknown) as other:
                assert other.event()[0] == "snapshot"
        page.stop.set()
        assert browser.event()[0] == "over"


def test_hostile_texts_are_json_and_nothing_else(tmp_path: Path) -> None:
    rule = made(event="decision", rule=HOSTILE, step=1, saw={HOSTILE: 1.0}, size=1, asked=2, done=HOSTILE)
    started = made(event="started", job=HOSTILE, size=1, command=[HOSTILE, "</script>"])
    written(tmp_path, [started, rule], metrics=[measured(1, **{HOSTILE: 2.0, "__proto__": 3.0})])
    appended(tmp_path, "events.jsonl", '{"event": "of a later version", "time": 1.0}', '{"half')
    with serve_page(tmp_path) as page:
        awaited(lambda: b"curves" in page.get("/run.json")[2], what="the record", deadline_s=30.0)
        _, headers, body = page.get("/run.json")
        assert headers["content-type"] == "application/json"
        told = json.loads(body)
        assert [one["name"] for one in told["curves"]["curves"]][-2:] == [HOSTILE, "__proto__"]
        assert told["run"]["job"] == HOSTILE
        assert any(item.get("outcome") == HOSTILE for item in told["items"])
        assert any("2 lines of the record" in one for one in told["run"]["remarks"])


def test_without_a_step_or_a_job_file_a_page_is_there_and_says_so(tmp_path: Path) -> None:
    with serve_page(written(tmp_path, GROWN[:3])) as page, page.browser() as browser:
        *_, whole = browser.event()
        assert (whole["curves"]["steps"], whole["run"]["state"]) == ([], "unknown")
        assert "holds no job.json" in whole["run"]["remarks"][0]


# ---- many, slow, gone ------------------------------------------------------------------------------------------------


def test_two_hundred_browsers_get_every_update_and_one_too_many_hears_why(tmp_path: Path) -> None:
    written(tmp_path, GROWN, metrics=[measured(1)])
    with serve_page(tmp_path, limits=PageLimits(viewers=200)) as page, ExitStack() as stack:
        browsers = [stack.enter_context(page.browser()) for _ in range(200)]
        assert {browser.event()[0] for browser in browsers} == {"snapshot"}
        status, headers, text = page.get("/updates")
        assert (status, headers["retry-after"]) == (503, "30")
        assert text.startswith(b"200 browsers look at this page already")
        appended(tmp_path, "metrics.jsonl", json.dumps(measured(2)))
        # What was there before the first look may come once more, with an update that has no other news.
        news = [browser.until(lambda data: 2 in data.get("curves", {}).get("steps", ())) for browser in browsers]
        assert {one["curves"]["steps"][-1] for one in news} == {2}
        stack.close()
        awaited(lambda: page.server.feed.log.viewers == 0, what="their leaving", deadline_s=30.0)
        with page.browser() as late:
            assert late.event()[0] == "snapshot"


def test_a_browser_that_takes_nothing_is_dropped_and_the_others_see_all(tmp_path: Path) -> None:
    written(tmp_path, GROWN, metrics=[measured(1)])
    with serve_page(tmp_path, limits=PageLimits(send_within_s=0.3)) as page:
        others = page.coming_back()  # on a machine that stands still it may be late, too
        assert next(others)[0] == "snapshot"
        with socket.create_connection(("127.0.0.1", page.port)) as slow:
            slow.sendall(b"GET /updates HTTP/1.1\r\nHost: localhost\r\n\r\n")
            awaited(lambda: page.server.feed.log.viewers == 2, what="both", deadline_s=30.0)
            for number in range(30):
                page.server.feed.log.publish(json.dumps([number, "x" * (1 << 20)]))
                assert next(data for *_, data in others if isinstance(data, list))[0] == number
            others.close()
            awaited(lambda: page.server.feed.log.viewers == 0, what="it is dropped", deadline_s=60.0)


@pytest.mark.parametrize(("lasting_s", "left"), [(60.0, 4), (0.2, 0)])
def test_connections_that_say_nothing_or_not_enough_are_ended_and_browsers_stay(
    tmp_path: Path, lasting_s: float, left: int
) -> None:
    """Few of them from one address at once, and each for a time; what has a request under way is none of them."""
    written(tmp_path, GROWN, metrics=[measured(1)])
    limits = ConnectionLimits(most=8, per_address=4, lasting_s=lasting_s)
    with serve_page(tmp_path, quiet=limits) as page, page.browser() as browser, ExitStack() as opened:
        assert browser.event()[0] == "snapshot"
        where = "127.0.0.1", page.port
        quiet = [opened.enter_context(socket.create_connection(where, 60)) for _ in range(40)]
        for one in quiet[::2]:
            one.sendall(b"GET / HTTP/1.1\r\nHost: ")
        awaited(lambda: sum(map(is_ended, quiet)) == 40 - left, what="their ends", deadline_s=60.0)
        assert page.get("/")[0] == 200
        assert page.server.feed.log.viewers == 1


def is_ended(connection: socket.socket) -> bool:
    """Whether the other end has hung up."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# ---- what may be asked of the job ------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return written(tmp_path, GROWN, metrics=[measured(step, size=2 if step < 20 else 3) for step in range(1, 41)])


def test_without_the_secret_or_from_another_site_nothing_is_asked_of_the_job(job: Path) -> None:
    resize = {"action": "resize", "size": 3}
    with serve_job(job) as place, serve_page(job) as page:
        for path in ("/plan", "/requests"):
            for secret in ({}, {"kungfu_secret": ""}, {"kungfu_secret": SECRET + "0"}, {"kungfu_secret": "\xe4"}):
                status, told = page.post(path, resize, **secret)
                assert (status, "kungfu page --secret RUN" in told["error"]) == (403, True)
            for site in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}):
                assert page.post(path, resize, kungfu_secret=SECRET, **site)[0] == 403
            assert page.get(path)[0] == 405
        for name in ("evil.example", "", "127.0.0.1.evil.example", "[::1].evil.example"):
            assert page.get("/", host=name)[0] == 421
        for name in (f"localhost:{page.port}", "[::1]:9", "127.0.0.1"):
            assert page.get("/", host=name)[0] == 200
        with socket.create_connection(("127.0.0.1", page.port), timeout=60) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 400", "by two names"
        assert place.told == []


def test_what_is_no_request_is_refused_before_the_job_is_asked(job: Path) -> None:
    with serve_job(job) as place, serve_page(job) as page:
        for body, why in (
            (b"{", "no JSON object"), (b"[" * 4000, "no JSON object"), (b" " * 5000 + b"{}", "no JSON object"),
            ([], "must be an object"), ({}, "action: must be one of resize, release, checkpoint, stop"),
            ({"action": "resize"}, "size: must be a whole number"), ({"action": "resize", "size": True}, "size"),
            ({"action": "resize", "size": 1e9}, "size"), ({"action": "resize", "size": 1 << 40}, "size"),
            *(({"action": "resize", "size": 2, "hold": hold}, "hold: must be") for hold in (0, -1, "", 10**400)),
            ({"action": "stop", "id": 7}, "id: must be a text"), ({"action": "stop", "if_view": "1"}, "if_view"),
        ):  # fmt: skip
            status, told = page.post("/requests", body, kungfu_secret=SECRET)
            assert (status, why in told["error"]) == (400, True), (body, told)
        assert place.told == []


def test_a_resize_is_planned_in_words_and_then_carried_out_as_it_was_shown(job: Path) -> None:
    secret: dict[str, Any] = {"kungfu_secret": SECRET}
    resize = {"action": "resize", "size": 3}
    with serve_job(job) as place, serve_page(job) as page:
        hosts, alive = Hosts({0: 4}, of={0: 0, 1: 0}), replace(place.cluster.processes, next_id=2)
        place.cluster = replace(place.cluster, hosts=hosts, processes=alive)
        place.put(NewRecords(rows=(ROW,)))
        status, plan = page.post("/plan", resize, origin=f"http://127.0.0.1:{page.port}", **secret)
        assert (status, plan["view"], plan["refusal"], plan["changes_nothing"]) == (200, 3, "", False)
        assert plan["lines"][0] == "resize 3 would take view 3 from 2 -> 3 peers; nothing was changed"
        assert any("samples/s" in line for line in plan["lines"])
        assert place.told == []
        _, refused = page.post("/plan", {"action": "resize", "size": 9}, **secret)
        assert "this job takes 1 to 4" in refused["refusal"]
        asked = {**resize, "id": "one", "if_view": plan["view"]}
        status, told = page.post("/requests", asked, **secret)
        assert (status, told["state"], told["words"]) == (200, "accepted", "resize 3")
        assert [one.what for one in place.told] == [Resize(3)]
        _, told = page.post("/requests", {**asked, "id": "two", "if_view": 2}, **secret)
        assert (told["state"], "not in view 2" in told["reason"]) == ("refused", True)


def test_a_size_is_held_and_released_with_what_is_shown_before(job: Path) -> None:
    def post(path: str, action: str, **more: Any) -> dict[str, Any]:
        return page.post(path, {"action": action, **more}, kungfu_secret=SECRET)[1]

    with serve_job(job) as place, serve_page(job) as page:
        plan = post("/plan", "resize", size=2, hold=True)
        assert (plan["request"], plan["changes_nothing"]) == ("resize 2 --hold", False)
        assert "  held      at 2 until it is released; lost peers are still replaced" in plan["lines"]
        assert post("/plan", "resize", size=2)["changes_nothing"]
        assert post("/requests", "resize", size=2, hold=600)["words"] == "resize 2 --hold 600"
        assert not post("/plan", "resize", size=2)["changes_nothing"], "it would end the hold"
        assert post("/plan", "release")["lines"] == ["the job keeps 2 peers; policies decide again"]
        assert post("/requests", "release")["state"] == "accepted"
        assert [one.what for one in place.told] == [Resize(2), SetLimits()]


def test_a_checkpoint_and_a_stop_are_told_before_they_are_asked_for(job: Path) -> None:
    def planned(action: str, **more: Any) -> list[str]:
        return page.post("/plan", {"action": action, **more}, **secret)[1]["lines"]

    secret = {"kungfu_secret": SECRET.upper()}
    with serve_job(job) as place, serve_page(job) as page:
        assert "has written no checkpoint yet" in planned("checkpoint")[-1]
        checkpoint = made(event="checkpoint", step=30, path="/runs/c/30", bytes=9, seconds=1, stop_s=0.25)
        appended(job, "events.jsonl", event_to_line(checkpoint))
        feed = page.server.feed
        awaited(lambda: feed.job.checkpoint is not None, what="the checkpoint in the record", deadline_s=30.0)
        line = "that one is of step 30, 10 steps before this one; it stopped the training for 250 ms"
        assert planned("checkpoint")[-1] == line
        first, _, newest, _ = planned("stop")
        assert first == "training ends on 2 peers after the step under way; now it is step 40"
        assert "10 steps before this one: /runs/c/30" in newest
        assert place.told == []
        assert page.post("/requests", {"action": "stop"}, **secret)[1]["state"] == "accepted"
        assert [one.what for one in place.told] == [StopTraining()]
        assert "refused" in planned("resize", size=3)[0]


def test_the_last_update_says_how_the_job_has_ended(job: Path) -> None:
    with serve_job(job), serve_page(job) as page, page.browser() as browser:
        assert browser.event()[2]["run"]["state"] == "running"
        end_job_file(job, code=3, now=1.0)
        page.stop.set()
        told = [*iter(browser.event, ("over", "", {}))]
        last = [data["run"] for *_, data in told if "run" in data][-1]
        assert (last["state"], last["code"]) == ("over", 3)


def test_while_browsers_look_the_job_itself_tells_its_size_limits_and_end(job: Path) -> None:
    with serve_job(job), serve_page(job) as page, page.browser() as browser:
        browser.until(lambda data: data.get("membership"))
        assert json.loads(page.get("/run.json")[2])["membership"] == {
            "size": 2, "target": 2, "minimum": 1, "maximum": 4, "held": "", "scaling": "elastic", "request": None
        }  # fmt: skip
        end_job_file(job, code=0, now=1.0)
        assert browser.until(lambda data: data.get("run", {}).get("state") == "over")["run"]["code"] == 0
        status, answer = page.post("/requests", {"action": "stop"}, kungfu_secret=SECRET)
        assert (status, "secret" in answer["error"]) == (403, True), "a job that is over has none"


# ---- for whom it waits, what its processes use, and what they have printed -------------------------------------------


def test_a_job_that_runs_tells_why_for_whom_it_waits_and_what_its_peers_use(tmp_path: Path) -> None:
    known = made(event="spawned", peer=0, pid=os.getpid(), time=110.0)
    hostile = [made(event="spawned", peer=9, pid=pid, time=101.0) for pid in (-1, 1 << 40)]
    with (
        serve_job(written(tmp_path, [*GROWN[:6], known, *hostile])),
        serve_page(tmp_path) as page,
        page.browser() as browser,
    ):
        told = browser.until(lambda data: data.get("usage"))
        assert told["usage"]["0"][1] > 1_000_000, "the memory of this process"
        assert "9" not in told["usage"]
        whole = json.loads(page.get("/run.json")[2])
        assert whole["waiting"].startswith("2 starting for ")
        assert whole["run"]["why"] == (
            "step 50, gns_batch: 2 -> 3 peers, under way (noise scale 50.7, local batch size 16)"
        )
        assert whole["run"]["folder"] == str(tmp_path)
        end_job_file(tmp_path, code=0, now=1.0)
        told = browser.until(lambda data: data.get("run", {}).get("state") == "over")
        assert (told["waiting"], told["usage"]) == ("", {})


def test_processes_of_another_host_are_not_measured_here(tmp_path: Path) -> None:
    hosts = [
        made(event="host", host=host, name=name, pid=pid) for host, name, pid in ((0, "a", os.getpid()), (1, "b", 1))
    ]
    peers = [made(event="spawned", peer=peer, pid=os.getpid(), host=peer) for peer in (0, 1)]
    with serve_job(written(tmp_path, [*hosts, *peers])), serve_page(tmp_path) as page, page.browser() as browser:
        assert [*browser.until(lambda data: data.get("usage"))["usage"]] == ["0"]


def test_the_log_of_a_peer_is_plain_text_that_anyone_who_sees_the_page_may_read(job: Path) -> None:
    (job / "peers").mkdir()
    (job / "peers" / "peer-0.log").write_text(f"{HOSTILE}\nthe secret is {SECRET}\n")
    with serve_job(job), serve_page(job) as page:
        status, headers, body = page.get("/logs/0")
        kind = headers["content-type"], headers["x-content-type-options"], headers["cache-control"]
        assert (status, kind) == (200, ("text/plain; charset=utf-8", "nosniff", "no-store"))
        assert body.decode() == f"{HOSTILE}\nthe secret is (the secret is not shown)"
        for peer in ("1", "%2e%2e%2fjob.json", "9" * 5_000):
            assert page.get(f"/logs/{peer}")[0] == 404
        assert page.ask("POST", "/logs/0", b"", {})[0] == 405
