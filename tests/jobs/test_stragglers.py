"""A job with a slow peer: whoever asks is told of it, and it leaves first when the job shrinks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kungfu.cli.main import main
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.status import PeerStatus
from tests.jobs.harness import Job, asked, awaited, started
from tests.soak import SOAK


def with_clear_straggler(job: Job, slow: int) -> dict[int, PeerStatus]:
    """The peers of the job by id, once the slow one is known as such, and is by far the slowest."""

    def look() -> dict[int, PeerStatus] | None:
        with connected(job.folder) as client:
            peers = {one.id: one for one in client.status().peers}
        speeds = {peer: one.speed or 0.0 for peer, one in peers.items()}
        others = [speed for peer, speed in speeds.items() if peer != slow]
        return peers if 0 < speeds[slow] < 0.5 and min(others) > 0.7 else None

    found: dict[int, PeerStatus] = awaited(look, what=f"a status in which peer {slow} straggles", deadline_s=180.0)
    return found


@SOAK
def test_the_slowest_peer_leaves_first_though_it_is_the_oldest(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path, "-np", 3, program="paced.py", arguments=[tmp_path, "straggling", 0]) as job:
        job.event("view", version=1)
        peers = with_clear_straggler(job, 0)
        assert (peers[0].rank, peers[0].is_straggler) == (0, True)
        assert asked(job.folder, capsys, "resize", 2)["state"] == "carried out"
        decision = job.event("decision", asked=2)
        job.event("rescale", to=2)
        with connected(job.folder) as client:
            assert [one.id for one in client.status().peers if one.rank is not None] == [1, 2]
        asked(job.folder, capsys, "stop")
        ended = job.end()
    assert [event["peers"] for event in ended.all_of("view")] == [[0, 1, 2], [1, 2]]
    assert list(decision["slow"]) == ["0"]
    assert 0 < decision["slow"]["0"] < 0.9
    told = re.fullmatch(r"1 peer leaves at once; peer 0 left first: (0\.\d\d) of the median speed", decision["done"])
    assert told is not None
    assert float(told[1]) == pytest.approx(decision["slow"]["0"], abs=0.006)
    assert decision["done"] in ended.output
    capsys.readouterr()
    assert main(["why", str(job.folder)]) == 0
    assert decision["done"] in " ".join(capsys.readouterr().out.split())
    measured = [row["straggler_fractions"] for row in ended.metrics if "straggler_fractions" in row]
    assert {frozenset(one) for one in measured} == {frozenset("012"), frozenset("12")}
