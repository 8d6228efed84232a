"""A job that is steered from outside, by commands and by its page, on which it is seen live."""

from __future__ import annotations

import json
import signal
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.main import main
from kungfu.runtime.job_api.job_file import NAME, read_job_file
from kungfu.trace import read_trace
from tests.jobs.harness import asked, awaited, endless, lines_of, page_address, started, started_on_hosts
from tests.soak import SOAK


def test_a_job_is_resized_thinned_migrated_kept_and_stopped_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*words: object, code: int = 0) -> Any:
        return asked(job.folder, capsys, *words, code=code)

    with started(tmp_path, "-np", 2, "--max", 3, program="network.py", arguments=endless(tmp_path)) as job:
        job.event("view", version=1)
        assert stat.S_IMODE((job.folder / NAME).stat().st_mode) == 0o600
        grown = ask("resize", 3, "--if-view", 1, "--id", "grow")
        assert (grown["state"], grown["view"]) == ("carried out", 2), grown
        assert "not in view 1" in ask("scale-in", 1, "--if-view", 1, code=1)["reason"]
        assert ask("scale-in", 0)["state"] == "carried out", "rank 0 leaves as any other"
        assert ask("resize", 3, "--if-view", 1, "--id", "grow")["state"] == "carried out", "once, not again"
        assert ask("migrate", 1, "localhost")["state"] == "carried out"
        kept = ask("checkpoint")
        assert (kept["state"], Path(kept["reason"]).is_dir()) == ("carried out", True), kept
        status = ask("status")
        assert [(peer["id"], peer["rank"]) for peer in status["peers"] if peer["rank"] is not None] == [(2, 0), (3, 1)]
        assert (status["membership"]["version"], status["figures"]["step"] > 0) == (4, True)
        assert main(["why", str(job.folder)]) == 0
        assert "the job runs: 2 peers train, for " in " ".join(capsys.readouterr().out.split()), "others have left"
        assert ask("scale-in", 2)["state"] == "carried out"
        assert ask("migrate", 3, "localhost")["state"] == "carried out", "the only one, and nothing is lost"
        assert ask("stop")["state"] == "carried out"
        ended = job.end()
    assert [event["peers"] for event in ended.all_of("view")] == [[0, 1], [0, 1, 2], [1, 2], [2, 3], [3], [3, 4], [4]]
    assert {event["peer"]: event["leaving"] for event in ended.all_of("finished")} == {
        **dict.fromkeys(range(4), True), 4: False
    }  # fmt: skip
    assert {row["batch"] for row in ended.metrics} == {12}, "nobody outside changes what is trained"
    replaced = [one.agreed["replaced_peers"] for one in read_trace(ended.folder).steps]
    assert (replaced[0], sorted(set(replaced)), replaced[-1]) == (0, [0, 1, 2], 2), "by migrations"
    requests = [(event["request"], event["state"]) for event in ended.all_of("request")]
    assert requests[:2] == [("resize 3", "accepted"), ("resize 3", "carried out")]
    assert requests.count(("resize 3", "carried out")) == 1
    assert (read_job_file(job.folder).code, read_job_file(job.folder).secret) == (0, "")
    assert main(["status", str(job.folder)]) == 0
    assert "with exit code 0: training ended, and every peer exited normally\n" in capsys.readouterr().out


def wants(size: int) -> tuple[object, ...]:
    """The options of a job whose policy asks for a size from the first step on."""
    return ("--max", size, "--policy", f"schedule({{1: {size}}})")


def test_a_size_that_a_person_holds_is_changed_by_no_policy_until_it_is_released(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy wants 3 peers and its joiner is under way; then rank 0 is lost, which knows of the hold."""
    arguments = endless(tmp_path)
    with started(tmp_path, "-np", 2, *wants(3), program="network.py", arguments=arguments) as job:
        job.event("decision", rule="schedule", asked=3)
        assert asked(job.folder, capsys, "resize", 2, "--hold")["state"] == "carried out"
        assert job.event("superseded", rule="schedule", held=2)["asked"] == 3
        job.signal(signal.SIGKILL, peer=0)
        job.event("rescale", **{"from": 1, "to": 2})
        where = asked(job.folder, capsys, "status")["membership"]
        assert (where["size"], where["target"], where["held_at"]) == (2, 2, 2)
        assert main(["why", str(job.folder)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert shown.count("held at 2 by a person until it is released: schedule wants 3 peers") == 1, "once"
        assert asked(job.folder, capsys, "resize", "--release")["state"] == "carried out"
        job.event("rescale", to=3, deadline_s=120.0)
        assert asked(job.folder, capsys, "stop")["state"] == "carried out"
        ended = job.end()
    told = ended.events
    stopped = next(at for at, one in enumerate(told) if one["event"] == "superseded" and one.get("held"))
    released = next(at for at, one in enumerate(told) if one["event"] == "limits" and not one.get("held"))
    sizes = [len(one["peers"]) for one in told[stopped:released] if one["event"] == "view"]
    assert sizes == [1, 2], "the lost peer was replaced, and nothing else changed"


@SOAK
def test_a_hold_outlives_the_leading_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, slots = ("-np", 3, *wants(4)), (1, 2, 2)
    with started_on_hosts(tmp_path, *line, slots=slots, program="network.py", arguments=endless(tmp_path)) as hosts:
        hosts[1].event("decision", rule="schedule", asked=4)
        assert asked(hosts[0].folder, capsys, "resize", 3, "--hold", 3600)["state"] == "carried out"
        hosts[1].event("superseded", rule="schedule", held=3)
        hosts[0].signal(signal.SIGKILL)
        hosts[1].event("rescale", **{"from": 2, "to": 3})
        where = asked(hosts[1].folder, capsys, "status")["membership"]
        assert (where["size"], where["target"], where["held_at"]) == (3, 3, 3)
        assert 0 < where["held_for_s"] <= 3600
        assert asked(hosts[2].folder, capsys, "resize", "--release")["state"] == "carried out"
        hosts[1].event("rescale", to=4)
        assert asked(hosts[1].folder, capsys, "stop")["state"] == "carried out"
        for job in hosts.jobs[1:]:
            job.end()


# ---- its page --------------------------------------------------------------------------------------------------------


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
    line = ("-np", 2, "--max", 3, "--page", "--on-event", "cat >> told.jsonl")
    with started(tmp_path, *line, program="network.py", arguments=endless(tmp_path)) as job:
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
            # The membership and its peers may come with two looks.
            grown = next(data for _, data in events if data.get("membership", {}).get("size") == 3)
            next(data for data in chain([grown], (data for _, data in events)) if _ranks(data) == [0, 1, 2])
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
    assert "on-event" not in ended.output
    told = [one for one in ended.events if one["event"] in ("started", "rescale", "ended")]
    assert lines_of(tmp_path / "told.jsonl") == told, "a command has got what a person wants to know"
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


def _ranks(data: dict[str, Any]) -> list[int]:
    """The ranks of the peers that an update has."""
    return [row["rank"] for row in data.get("peers", ()) if row["rank"] is not None]


def _newest(data: dict[str, Any], name: str) -> list[float]:
    """The points of a curve that an update has."""
    curves = data.get("curves", {}).get("curves", ())
    return next((one["values"] for one in curves if one["name"] == name), [])


def _read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()
