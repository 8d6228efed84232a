"""The list of the runs in a folder: what came of each, their pages below it, and their comparison."""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kungfu.cli.export.listen_address import ListenAddress, listening
from kungfu.cli.page import runs
from kungfu.cli.page.runs import RunList
from kungfu.cli.page.server import runs_server
from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, RecordEvent
from kungfu.runtime.job_api.job_file import JobFile, end_job_file, write_job_file
from tests.cli.page.test_page import WITHIN_S, Client
from tests.cli.recorded import FAILED, GROWN, measured, written
from tests.jobs.harness import awaited
from tests.runtime.job_api.served_job import SECRET, serve_job

HOSTILE = "<img src=x onerror=alert(1)> & ü?#"


@contextmanager
def serve_runs(folder: Path) -> Iterator[Client]:
    server = runs_server(folder, listening(ListenAddress("127.0.0.1", 0)))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Client(server.port)
    finally:
        server.end()
        thread.join(WITHIN_S)
        assert not thread.is_alive()


@contextmanager
def looking(page: Client, path: str) -> Iterator[None]:
    """A browser that has been sent the first updates of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=WITHIN_S)
    try:
        connection.request("GET", path)
        assert b"retry" in connection.getresponse().readline()
        yield
    finally:
        connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs that are over, one of a later version, and a folder that is no run."""
    for name in ("grown", "failed", "later", "other"):
        (tmp_path / name).mkdir()
    written(tmp_path / "grown", GROWN, metrics=[measured(step) for step in range(1, 41)])
    written(tmp_path / "failed", FAILED)
    (tmp_path / "later" / "events.jsonl").write_text(event_to_line(RecordEvent(version=RECORD_VERSION + 1)) + "\n")
    return tmp_path


def listed(page: Client) -> dict[str, dict[str, Any]]:
    status, headers, body = page.get("/runs.json")
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "application/json", "no-store")
    return {row["name"]: row for row in json.loads(body)["runs"]}


def test_the_runs_are_listed_with_what_came_of_each(folder: Path) -> None:
    live = folder / HOSTILE
    live.mkdir()
    written(live, GROWN[:6], metrics=[measured(1)])
    with serve_job(live), serve_runs(folder) as page:
        rows = listed(page)
        assert [*rows][-2:] == ["failed", "later"], "those that began last come first"
        grown, failed = rows["grown"], rows["failed"]
        assert (grown["state"], grown["is_failed"], grown["how"]) == ("unknown", False, "training is over")
        assert (grown["newest"]["step"], grown["newest"]["batch"]) == (40, 32)
        assert grown["why"].endswith("(noise scale 83.1)")
        assert (failed["is_failed"], failed["how"]) == (True, "rank 1 (peer 1): killed by SIGKILL")
        assert f"version {RECORD_VERSION + 1}" in rows["later"]["remark"]
        assert (rows[HOSTILE]["state"], rows[HOSTILE]["command"]) == ("running", "python digits.py")
        assert rows[HOSTILE]["waiting"].startswith("1 starting for ")
        assert page.get(f"/run/{quote(HOSTILE)}/")[0] == 200
        assert SECRET not in json.dumps(rows)


def test_the_list_reads_what_is_new_and_says_how_many_runs_it_leaves_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_LOOK_EVERY_S", 0.0)
    known = RunList(folder)
    assert [row["name"] for row in known.look()["runs"] if row["remark"]] == ["later"]
    assert [row["name"] for row in known.look()["runs"] if row["remark"]] == ["later"], "again"
    assert {row["name"]: row["newest"].get("step") for row in known.look()["runs"]}["grown"] == 40
    with (folder / "grown" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(measured(41)) + "\n")
    assert {row["name"]: row["newest"].get("step") for row in known.look()["runs"]}["grown"] == 41
    monkeypatch.setattr(runs, "_MOST_RUNS", 1)
    told = known.look()
    assert (len(told["runs"]), told["count"]) == (1, 3)


def test_each_run_has_its_page_below_the_list_and_nothing_else_has(folder: Path) -> None:
    with serve_runs(folder) as page:
        _, headers, html = page.get("/")
        assert b'<table id="runs"' in html
        assert "default-src 'none'" in headers["content-security-policy"]
        assert page.get("/static/runs.js")[0] == 200
        status, headers, html = page.get("/run/grown/")
        assert (status, b'<h1 id="title">' in html) == (200, True)
        assert headers["content-security-policy"].count("default-src") == 1
        assert page.get("/run/grown/static/main.js")[0] == 200
        assert json.loads(page.get("/run/grown/run.json")[2])["run"]["newest"]["step"] == 40
        assert page.post("/run/grown/requests", {"action": "stop"}, kungfu_secret="x")[0] == 409
        status, headers, _ = page.get("/run/grown")
        assert (status, headers["location"].endswith("/run/grown/")) == (307, True)
        status, _, text = page.get("/run/later/")
        assert (status, f"version {RECORD_VERSION + 1}" in text.decode()) == (409, True)
        for name in ("other", "nothing", "..", "%2e%2e", "grown%2f..", quote(str(folder / "grown"), safe="")):
            assert page.get(f"/run/{name}/")[0] == 404, name
        assert page.get("/", host="evil.example")[0] == 421
        assert page.get("/run/grown/", host="evil.example")[0] == 421


def test_runs_are_compared_as_by_the_command_and_what_cannot_be_is_told(folder: Path) -> None:
    with serve_runs(folder) as page:
        for query, why in (
            ("", "give 2 to 8 runs"), ("run=grown", "give 2 to 8 runs"), ("run=grown&run=grown", "give 2 to 8 runs"),
            ("run=grown&run=../x", "there is no run '../x'"), ("run=grown&run=failed", "failed/metrics.jsonl: no line"),
        ):  # fmt: skip
            status, _, body = page.get(f"/compare.json?{query}")
            assert (status, why in json.loads(body)["error"]) == (400, True), query
        (folder / "again").mkdir()
        written(folder / "again", GROWN, metrics=[measured(step, loss=3.0 / step) for step in range(2, 31)])
        status, _, body = page.get("/compare.json?run=grown&run=again")
        told = json.loads(body)
        assert (status, told["names"]) == (200, ["grown", "again"])
        assert ["steps", "40", "29"] in told["rows"]
        assert told["notes"] == [
            "again: its record begins with step 2: what came before, in another run, is not counted"
        ]
        assert base64.b64decode(told["plot"]).startswith(b"\x89PNG")


def test_without_the_library_for_plots_the_table_is_shown_and_the_advice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("kungfu.extras.find_spec", lambda name: None)
    (folder / "again").mkdir()
    written(folder / "again", GROWN, metrics=[measured(step) for step in range(1, 31)])
    with serve_runs(folder) as page:
        status, _, body = page.get("/compare.json?run=grown&run=again")
    told = json.loads(body)
    assert (status, told["plot"], ["steps", "40", "30"] in told["rows"]) == (200, "", True)
    assert "no plot is drawn: it needs matplotlib; pip install" in told["notes"][-1]


def followers() -> int:
    return sum(thread.name == "kungfu-page" for thread in threading.enumerate())


def test_a_page_that_nobody_looks_at_is_closed_and_opened_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_KEPT_UNSEEN_S", 0.0)
    monkeypatch.setattr(runs, "_ARRIVES_WITHIN_S", 0.0)
    with serve_runs(folder) as page:
        with looking(page, "/run/grown/updates"):
            assert page.get("/run/failed/")[0] == 200
            awaited(lambda: followers() == 1, what="one page that is looked at", deadline_s=20)
        awaited(lambda: followers() == 0, what="no page", deadline_s=20)
        assert json.loads(page.get("/run/grown/run.json")[2])["run"]["newest"]["step"] == 40


def test_of_many_pages_the_oldest_unseen_one_makes_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_MOST_PAGES", 1)
    monkeypatch.setattr(runs, "_ARRIVES_WITHIN_S", 0.0)
    with serve_runs(folder) as page:
        assert page.get("/run/failed/")[0] == 200
        with looking(page, "/run/grown/updates"):
            awaited(lambda: followers() == 1, what="one page", deadline_s=20)
            status, _, text = page.get("/run/failed/")
            assert (status, b"looked at already" in text) == (409, True)
            assert page.get("/run/grown/")[0] == 200


def test_one_comparison_is_made_at_a_time_and_none_for_another_site(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(folders: list[Path]) -> None:
        begun.set()
        assert go_on.wait(WITHIN_S)
        raise UsageError("no step")

    monkeypatch.setattr("kungfu.cli.compare.compare_runs", slow)
    query = "/compare.json?run=grown&run=failed"
    with serve_runs(folder) as page:
        status, _, body = page.get(query, sec_fetch_site="cross-site")
        assert (status, "another site" in json.loads(body)["error"], begun.is_set()) == (403, True, False)
        first = threading.Thread(target=page.get, args=(query,))
        first.start()
        assert begun.wait(WITHIN_S)
        status, _, body = page.get(query)
        assert (status, "another comparison is being made" in json.loads(body)["error"]) == (429, True)
        go_on.set()
        first.join(WITHIN_S)
        assert page.get(query)[0] == 400, "the next one is made"


def test_another_users_links_out_of_the_folder_are_no_runs(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = written(tmp_path_factory.mktemp("elsewhere"), GROWN)
    (folder / "linked").symlink_to(elsewhere)
    (folder / "inside").symlink_to(folder / "grown")
    (folder / "other" / "events.jsonl").symlink_to(elsewhere / "events.jsonl")
    own = {"grown", "failed", "later", "inside"}
    assert {*runs.run_names(folder)} == {*own, "linked", "other"}, "the user's own links are followed"
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert {*runs.run_names(folder)} == own


def test_a_name_that_is_not_utf_8_is_left_out_of_the_list(folder: Path) -> None:
    (folder / "grown").rename(os.fsdecode(os.fsencode(folder) + b"/\xff"))
    assert {*runs.run_names(folder)} == {"later", "failed"}


def test_whether_a_job_of_another_machine_runs_is_not_known_until_it_ends(folder: Path) -> None:
    write_job_file(folder / "failed", JobFile("job", "127.0.0.1:1", "", os.getpid(), 5.0, process="another-boot 7"))
    with serve_runs(folder) as page:
        row, run = listed(page)["failed"], json.loads(page.get("/run/failed/run.json")[2])["run"]
    assert (row["state"], run["state"]) == ("unknown", "unknown")
    assert any("another machine" in remark for remark in run["remarks"])
    end_job_file(folder / "failed", code=3, now=6.0)
    told = {row["name"]: (row["state"], row["code"]) for row in RunList(folder).look()["runs"]}
    assert told["failed"] == ("over", 3)
