"""A job with a page: it is seen live, and resized by its button."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kungfu.runtime.job_api.job_file import read_job_file
from tests.jobs.harness import awaited, endless, page_address, started, started_on_hosts
from tests.soak import SOAK


def posted(address: str, path: str, body: dict[str, Any], *, secret: str) -> tuple[int, dict[str, Any]]:
    """The status and the answer to a request of the page."""
    headers = {"kungfu-secret": secret, "content-type": "application/json", "origin": address.rstrip("/")}
    request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def events_of(stream: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The server-sent events of a page, as a browser gets them."""
    kind = ""
    for line in stream:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        kind = value if name == "event" else kind
        if name == "data":
            yield kind, json.loads(value)


def test_a_page_shows_a_job_live_resizes_it_with_the_secret_and_ends_with_it(tmp_path: Path) -> None:
    with started(tmp_path, "-np", 2, "--max", 3, "--page", program="network.py", arguments=endless(tmp_path)) as job:
        address = page_address(job)
        job.event("view", version=1)
        with urllib.request.urlopen(f"{address}updates", timeout=120) as stream:
            events = events_of(stream)
            kind, whole = next(events)
            assert (kind, whole["run"]["name"]) == ("snapshot", job.folder.name)
            wanted = {"action": "resize", "size": 3}
            assert posted(address, "requests", wanted, secret="0" * 64)[0] == 403
            secret = read_job_file(job.folder).secret
            status, plan = posted(address, "plan", wanted, secret=secret)
            assert (status, plan["refusal"]) == (200, ""), plan
            assert "2 -> 3 peers; nothing was changed" in plan["lines"][0]
            assert (
                "this job takes 1 to 3" in posted(address, "plan", {**wanted, "size": 4}, secret=secret)[1]["refusal"]
            )
            status, accepted = posted(address, "requests", {**wanted, "if_view": plan["view"]}, secret=secret)
            assert (status, accepted["state"]) == (200, "accepted"), accepted
            grown = next(data for _, data in events if data.get("membership", {}).get("size") == 3)
            trained = grown if "peers" in grown else next(data for _, data in events if "peers" in data)
            assert [row["rank"] for row in trained["peers"] if row["rank"] is not None] == [0, 1, 2]
            next(data for _, data in events if 3 in _newest(data, "size"))
            # The page reads the events before the steps: those of one moment may come with two looks.
            change = awaited(lambda: _change(address), what="the change in the story", deadline_s=60.0)
            assert (change["before"], change["after"], change["cause"]) == (2, 3, "kungfu resize 3")
            assert posted(address, "requests", {"action": "stop"}, secret=secret)[1]["state"] == "accepted"
            rest = [*events]
            assert rest[-1][0] == "over", "with the job"
            states = [data["run"]["state"] for _, data in rest if "run" in data]
            assert states[-1] == "over", "so that its buttons are gone"
        ended = job.end()
    assert ended.output.count("page: ") == 1, "its address, and nothing to remark"
    assert [event["state"] for event in ended.all_of("request")] == ["accepted", "carried out"] * 2


@SOAK
def test_the_pages_of_the_others_continue_when_the_leading_host_is_killed(tmp_path: Path) -> None:
    """When the leading host is killed, the pages of the others continue with their buttons."""
    line = ("-np", 3, "--max", 4, "--page")
    with started_on_hosts(tmp_path, *line, slots=(1, 2, 2), program="network.py", arguments=endless(tmp_path)) as hosts:
        addresses = [page_address(job) for job in hosts.jobs]
        hosts[1].event("view", version=1)
        hosts[0].signal(signal.SIGKILL)

        def continued() -> Any:
            """What the page of the second host tells once that host leads and three peers train again."""
            run = json.loads(_read(f"{addresses[1]}run.json"))
            ranks = [row["rank"] for row in run["peers"] if row["rank"] is not None]
            return run if run["run"]["leader"] and ranks == [0, 1, 2] else None

        run = awaited(continued, what="another leader and three peers", deadline_s=120.0)
        assert run["run"]["leader"] in ("127.0.0.2", "127.0.0.3")
        assert {row["host"] for row in run["peers"] if row["rank"] is not None} == {"127.0.0.2", "127.0.0.3"}
        assert any("127.0.0.1" in item["headline"] for item in run["items"] if item["kind"] == "failure")
        awaited(lambda: _is_gone(addresses[0]), what="the end of the page of the host that was killed", deadline_s=60.0)
        secret = read_job_file(hosts[2].folder).secret
        status, plan = posted(addresses[2], "plan", {"action": "resize", "size": 4}, secret=secret)
        assert (status, plan["refusal"]) == (200, ""), "by the page of either host"
        assert posted(addresses[2], "requests", {"action": "stop"}, secret=secret)[1]["state"] == "accepted"
        for job in hosts.jobs[1:]:
            job.end()


def _is_gone(address: str) -> bool:
    try:
        _read(address)
    except OSError:
        return True
    return False


def _change(address: str) -> dict[str, Any] | None:
    """The first change of the membership that a page tells of."""
    items = json.loads(_read(f"{address}run.json"))["items"]
    return next((item for item in items if item["kind"] == "change"), None)


def _newest(data: dict[str, Any], name: str) -> list[float]:
    """The points of a curve that an update has."""
    curves = data.get("curves", {}).get("curves", ())
    return next((one["values"] for one in curves if one["name"] == name), [])


def _read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()
