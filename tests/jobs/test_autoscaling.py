"""Policies that choose the size by throughput, in a real job, until the peer that they ask for trains.

Beside them a hook is called as often as can be.
"""

from __future__ import annotations

from tests.jobs.harness import Ended, started
from tests.soak import SOAK


def grown(tmp_path, *options: object, how: str, executed: bool = False) -> Ended:
    """A job of one peer, which trains until its policy has brought another one."""
    told = ["-np", 1, "--max", 2, *options]
    with started(tmp_path, *told, program="paced.py", arguments=[tmp_path, how], executed=executed) as job:
        job.event("rescale", to=2)
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert ended.sizes[:2] == [1, 2]
    assert {row["size"] for row in ended.metrics} == {1, 2}, "both sizes trained"
    return ended


def log_of(ended: Ended, peer: int) -> str:
    """What a peer has printed."""
    return (ended.folder / "peers" / f"peer-{peer}.log").read_text()


@SOAK
def test_autoscale_brings_another_peer_once_it_has_measured_the_first(tmp_path):
    policy = "kungfu.policies:autoscale(max_peers=2, efficiency=-1e9, every=5)"
    ended = grown(tmp_path, "--policy", policy, "--standby", 1, how="growing", executed=True)
    (first, *_) = ended.all_of("decision")
    assert (first["rule"], first["asked"]) == ("autoscale", 2)
    assert first["step"] >= 10, "a size is measured before it is left"
    assert ended.sizes == [1, 2], "no efficiency is too low"
    # The peer that joined was on standby before, and what it printed while it loaded is a part of its output.
    assert "keras is loaded already: False" in log_of(ended, 0)
    assert "keras is loaded already: True" in log_of(ended, 1)


def test_utility_of_a_program_with_a_worth_brings_another_peer(tmp_path):
    (first, *_) = grown(tmp_path, how="utility").all_of("decision")
    assert (first["rule"], first["asked"]) == ("utility", 2)
    assert first["step"] >= 10, "a size is measured before it is left"
