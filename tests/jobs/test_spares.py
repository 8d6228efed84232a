"""Jobs with spares: peers that are ready before the job wants them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.jobs.convex_runs import on_one_host, training
from tests.jobs.harness import Ended, Job, asked
from tests.soak import SOAK


def spare_states(ended: Ended, peer: int) -> list[str]:
    """What became of a spare."""
    return [event["state"] for event in ended.all_of("spare") if event["peer"] == peer]


def ready_spare(job: Job, peer: int) -> None:
    """Waits until this peer waits as a spare."""
    job.event("spare", peer=peer, state="ready")


def test_spares_join_for_a_request_and_for_a_killed_peer_and_end_with_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spares join for a request and for a killed peer, and the last one ends with the job."""
    with on_one_host(tmp_path, "--spares", 1, size=2, epochs=20, more=["--sleep-s", 0.1]) as (job, steered):
        ready_spare(job, 2)
        status = asked(job.folder, capsys, "status")
        assert [peer["state"] for peer in status["peers"]] == ["training", "training", "spare"]
        assert (status["membership"]["size"], status["membership"]["target"]) == (2, 2)
        steered.resize(3)
        job.event("rescale", joined=[2])
        ready_spare(job, 3)
        job.signal(signal.SIGKILL, peer=0)
        job.event("rescale", joined=[3])
        job.event("spawned", peer=4, spare=True)
        steered.hurry()
        ended = job.end()
    found = steered.ended(ended)
    assert ended.sizes == [2, 3, 2, 3]
    assert found.keys() == {1, 2, 3}
    assert [spare_states(ended, peer) for peer in (2, 3)] == [["ready", "wanted"]] * 2
    assert all(event.get("spare") for event in ended.all_of("spawned") if event["peer"] > 1)
    assert ended.all_of("recovered")[0]["lost"].keys() == {"0"}
    assert "(1 spare follows: it needs the memory of a peer)" in ended.output


def test_a_spare_replaces_a_peer_of_the_leaders_host_under_the_next_leader(tmp_path: Path) -> None:
    """The host that leads is killed: the next leader knows the spare, which takes the place of the lost peer."""
    given = {"slots": (1, 2, 1), "size": 3, "epochs": 20, "more": ["--sleep-s", 0.1]}
    with training(tmp_path, "--spares", 1, **given) as run:
        ready_spare(run.hosts[1], 3)
        run.faults("at step 10 kill host 0")
        _, ended, _ = run.ends(-signal.SIGKILL, 0, 0, tells=1)
    assert spare_states(ended, 3) == ["ready", "wanted"]
    assert [event["host"] for event in ended.all_of("spawned") if event["peer"] == 3] == [2]
    assert [event["peers"] for event in ended.all_of("view")][-1] == [1, 2, 3]


@SOAK
def test_a_spare_that_has_only_loaded_tensorflow_joins(tmp_path: Path) -> None:
    with on_one_host(tmp_path, "--spares", "1:loaded", size=1, epochs=40) as (job, steered):
        ready_spare(job, 1)
        steered.resize(2)
        job.event("rescale", joined=[1])
        ready_spare(job, 2)
        steered.hurry()
        ended = job.end()
    assert steered.ended(ended).keys() == {0, 1}
    assert [(event["peer"], event.get("spare", False)) for event in ended.all_of("spawned")] == [
        (0, False), (1, True), (1, False), (2, True)
    ]  # fmt: skip
