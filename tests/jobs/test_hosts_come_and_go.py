"""Hosts that no list names join a job that runs, leave it and come back; all of them are this machine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.jobs.convex_runs import training
from tests.jobs.harness import asked, lines_of


def test_a_host_joins_through_a_follower_gets_a_peer_and_outlives_the_leader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Host 2 joins, host 0 is lost, and host 2 is taken away; its name comes back as host 3."""
    with training(tmp_path, slots=(1, 1), size=2, most=3) as run:
        run.hosts[0].steps(10)
        joined = run.hosts.join(3, 1)
        run.hosts[0].event("host", host=2)
        assert asked(joined.folder, capsys, "resize", 3)["state"] == "carried out"
        assert asked(joined.folder, capsys, "status")["peers"][2]["host"] == "127.0.0.3"
        run.hosts[0].signal(signal.SIGKILL)
        run.hosts[1].event("recovered")
        joined.signal(signal.SIGTERM)
        left = joined.end()
        run.hosts[1].event("host left", host=2)
        again = run.hosts.join(3, 1, name="again")
        again.event("host", host=3)
        assert asked(again.folder, capsys, "status")["membership"]["size"] == 2
        killed, ended, *_ = run.ends(-signal.SIGKILL, 0, 0, 0, tells=1)
    assert [event["name"] for event in ended.all_of("host")] == [f"127.0.0.{n}" for n in (1, 2, 3, 3)]
    assert "left the job" in left.output
    assert killed.sizes == [2, 3]
    began = [line for line in lines_of(again.folder / "events.jsonl") if line["event"] in ("started", "view")]
    assert [len(line["peers"]) for line in began[1:4]] == [2, 3, 2], "its record tells what happened before"
