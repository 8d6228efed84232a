"""Policies in real jobs: they choose the size, replace slow peers and read signals, and their replay decides as they.

Beside those that choose the size by throughput a hook is called as often as can be.
"""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.main import main
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.status import PeerStatus
from kungfu.trace import Trace, read_trace, replay
from tests.jobs.harness import ROOT, Ended, Job, asked, awaited, lines_of, ran, started, started_on_hosts
from tests.soak import SOAK


def replayed(ended: Ended, *, start: int = 0) -> tuple[Trace, Sequence[Any]]:
    """The record of every step, and what a replay of the run's own plan decides, which is what the run decided."""
    trace = read_trace(ended.folder)
    assert trace.plan is not None
    again = replay(trace.plan, trace, whose="the run's", start=start)
    assert again.differences == ()
    return trace, again.decisions


def test_listing_1_runs_as_printed_and_grows_the_job_by_its_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hook of listing 1 in the KungFu paper."""
    arguments = ["--epochs", 1_000_000, "--device-ms", 20]
    example = ROOT / "examples" / "listing_1.py"
    with started(tmp_path, "-np", 2, "--min", 2, "--max", 3, program=example, arguments=arguments) as job:
        rescale = job.event("rescale", to=3)
        asked(job.folder, capsys, "stop")
        ended = job.end()
    assert rescale["rule"] == "listing_1"
    (first, *_) = [event for event in ended.all_of("called") if event["asked"] and event["asked"] >= 3]
    assert first["asked"] == pytest.approx(first["saw"]["noise_scale"] / 16, abs=0.51)


def grown(tmp_path: Path, policy: str, *options: object, how: str, executed: bool = False) -> Ended:
    """A job of one peer, which trains until its policy, of at most 18 samples, has brought another one."""
    line = ["-np", 1, "--max", 2, *options]
    with started(tmp_path, *line, program="paced.py", arguments=[tmp_path, how], executed=executed) as job:
        job.event("rescale", to=2)
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert ended.sizes[:2] == [1, 2]
    # The largest global batch is 18 samples, less than 12 for each of two peers.
    assert ended.all_of("rescale")[0]["global_batch_size"] == 18
    largest = [max(row["batch"] for row in ended.metrics if row["size"] == size) for size in (1, 2)]
    assert largest == [12, 18]
    (first, *_) = ended.all_of("decision")
    assert (first["rule"], first["asked"]) == (policy, 2)
    assert first["step"] >= 10, "a size is measured before it is left"
    trace, decisions = replayed(ended)
    assert next((one.step, one.value) for one in decisions if one.rule == policy) == (first["step"], 2)
    assert trace.remarks == ()
    assert [one.step for one in trace.steps] == [row["step"] for row in ended.metrics]
    assert [one.size for one in trace.steps] == [row["size"] for row in ended.metrics]
    assert [one.agreed["mean_loss"] for one in trace.steps] == pytest.approx([row["loss"] for row in ended.metrics])
    # Of both views: the steps of the first peer before are no steps of the view with the second.
    first_steps = [next(one.local for one in trace.steps if one.size == size) for size in (1, 2)]
    assert all(math.isnan(row["step_seconds"]) for rows in first_steps for row in rows)
    return ended


def log_of(ended: Ended, peer: int) -> str:
    """What a peer has printed."""
    return (ended.folder / "peers" / f"peer-{peer}.log").read_text()


@SOAK
def test_autoscale_brings_another_peer_once_it_has_measured_the_first(tmp_path: Path) -> None:
    policy = "kungfu.policies:autoscale(max_peers=2, efficiency=-1e9, every=5, max_global_batch=18)"
    ended = grown(tmp_path, "autoscale", "--policy", policy, "--spares", "1:loaded", how="growing", executed=True)
    assert ended.sizes == [1, 2], "no efficiency is too low"
    # The peer that joined was a spare before, and what it printed while it loaded is a part of its output.
    assert "keras is loaded already: False" in log_of(ended, 0)
    assert "keras is loaded already: True" in log_of(ended, 1)


def test_utility_of_a_program_with_a_worth_brings_another_peer(tmp_path: Path) -> None:
    grown(tmp_path, "utility", how="utility")


def test_the_noise_scale_is_that_computed_by_hand_and_the_replay_has_it_too(tmp_path: Path) -> None:
    (tmp_path / "hurry").touch()
    ended = ran(tmp_path, "-np", 2, program="paced.py", arguments=[tmp_path, "noise"])
    assert [row["noise_scale"] for row in ended.metrics] == [pytest.approx(2 / 3, rel=1e-6)] * 230
    calls = json.loads((tmp_path / "calls").read_text())
    assert calls == [[step, pytest.approx(2 / 3)] for step in range(3, 231, 3)]
    assert [row["loss"] for row in ended.metrics] == [1.0] * 230, "inputs of 3, 0, 1 and 0 have the mean 1"
    trace, decisions = replayed(ended, start=150)
    assert [one.after for one in trace.snapshots] == [0, 100, 200]
    assert [one.step for one in decisions] == list(range(150, 231, 3))
    assert [one.inputs["noise_scale"] for one in decisions] == pytest.approx([2 / 3] * 27)


def test_what_is_published_is_that_of_all_samples_and_what_was_fed_outlives_rank_0(tmp_path: Path) -> None:
    """Policies use what the program publishes and feeds, through a rescale and the death of rank 0."""
    with started(tmp_path, "-np", 2, "--max", 3, program="paced.py", arguments=[tmp_path, "own-signals"]) as job:
        job.event("rescale", to=3)
        job.signal(signal.SIGKILL, peer=0)
        recovered = job.event("recovered")
        job.event("rescale", to=3, view=recovered["view"] + 1)
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert ended.sizes == [2, 3, 2, 3]
    prices = [row["price"] for row in ended.metrics]
    known = next(index for index, one in enumerate(prices) if one is not None and not math.isnan(float(one)))
    assert 1 <= known <= 4
    assert set(prices[known:]) == {1.5}, "rank 0's, before and after its death, whatever the others were fed"
    assert len(ended.metrics) >= 200
    for row in ended.metrics:
        assert row["published_mean"] == pytest.approx(row["loss"], rel=1e-5), row
    _, decisions = replayed(ended)
    assert {one.rule for one in decisions} == {"three_while_cheap"}


def grown_and_without_rank_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, slots: Sequence[int]
) -> tuple[Ended, dict[str, Any]]:
    """A job of two peers, which a policy makes three, and which is stopped once another peer has replaced rank 0.

    It runs on one host, or on as many as ``slots`` has entries. Gives its end, and the event of its growth.
    """
    options, given = ("-np", 2, "--max", 3), {"program": "paced.py", "arguments": [tmp_path, how]}
    with ExitStack() as stack:
        if slots:
            jobs = stack.enter_context(started_on_hosts(tmp_path, *options, slots=slots, **given)).jobs
        else:
            jobs = [stack.enter_context(started(tmp_path, *options, **given))]
        job = jobs[0]
        rescale = job.event("rescale", to=3)
        job.signal(signal.SIGKILL, peer=0)
        recovered = job.event("recovered")
        job.event("rescale", to=3, view=recovered["view"] + 1)
        asked(job.folder, capsys, "stop")
        ended, *_ = [one.end() for one in jobs]
    assert ended.sizes == [2, 3, 2, 3]
    return ended, rescale


HOSTS = (1, 3)


@pytest.mark.parametrize(
    ("how", "slots"),
    [
        pytest.param("factored", (), marks=SOAK),
        pytest.param("factored", HOSTS, marks=SOAK),
        pytest.param("factored+micro", (), marks=SOAK),
        pytest.param("factored+fit", (), marks=SOAK),
    ],
)
def test_a_factor_is_the_same_on_all_peers_through_a_join_and_the_death_of_rank_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, slots: Sequence[int]
) -> None:
    """Of each step: the factor follows from the loss of the step before, and the next loss from rate and factor."""
    ended, _ = grown_and_without_rank_0(tmp_path, capsys, how, slots)
    # By step, since a killed rank 0 takes the lines of its latest steps with it.
    rows = {row["step"]: (row["loss"], row["learning_rate_factor"]) for row in ended.metrics}
    followed = [(*rows[step], *rows[step + 1]) for step in rows if step + 1 in rows]
    assert len(followed) > len(rows) - 10
    losses, factors, next_losses, next_factors = zip(*followed, strict=True)
    assert next_factors == pytest.approx([1 / (1 + loss**2) for loss in losses], rel=1e-5)
    expected = [loss - 0.5 * factor for loss, factor in zip(losses, factors, strict=True)]
    assert next_losses == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert {row["learning_rate"] for row in ended.metrics} == {0.5}
    assert [event["what"] for event in ended.all_of("set")] in ([], ["stop"])
    weights = [path.read_text() for path in tmp_path.glob("weight-*")]
    assert len(weights) == 3
    assert len(set(weights)) == 1, "bit for bit"
    _, decisions = replayed(ended)
    moves = [one for one in decisions if one.rule == "factor_of_loss"]
    assert [one.value for one in moves[:20]] == pytest.approx(next_factors[:20], rel=1e-5)


@pytest.mark.parametrize(
    ("how", "slots"),
    [
        ("deciding+micro", ()),
        pytest.param("deciding", HOSTS, marks=SOAK),
        pytest.param("deciding+fit", (), marks=SOAK),
    ],
)
def test_a_size_its_batch_and_its_rate_are_one_decision_that_outlives_rank_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, slots: Sequence[int]
) -> None:
    """Batch and rate come with the peer; the momentum, set beside them, is on the joiners too."""
    ended, rescale = grown_and_without_rank_0(tmp_path, capsys, how, slots)
    (decision,) = ended.all_of("decision")
    assert decision["settings"] == "a global batch size of 24 and a learning rate of 0.5"
    told = {event["what"]: (event["step"], event["to"]) for event in ended.all_of("set") if event["what"] != "stop"}
    step, late = decision["step"], rescale["step"]
    assert told == {
        "global batch size": (late, 24.0), "learning rate": (late, 0.5), "value of momentum": (step, 0.75)
    }  # fmt: skip
    joined = next(index for index, row in enumerate(ended.metrics) if row["size"] == 3)
    assert ended.metrics[joined]["step"] == rescale["step"] + 1 > step + 2
    assert {(row["batch"], row["learning_rate"]) for row in ended.metrics[:joined]} == {(12, 0.0)}
    # By step, since a killed rank 0 takes the lines of its latest steps with it.
    rates = {row["step"] - rescale["step"] - 1: row["learning_rate"] for row in ended.metrics[joined:]}
    assert rates == {after: min(after / 8, 0.5) for after in rates}
    assert {(row["batch"], row["learning_rate"]) for row in ended.metrics[joined + 4 :]} == {(24, 0.5)}
    assert [(tmp_path / f"momentum-{peer}").read_text() for peer in (1, 2, 3)] == ["0.75"] * 3
    _, decisions = replayed(ended)
    assert [(one.rule, one.step) for one in decisions] == [("in_one_decision", step), ("in_one_decision_2", step)]


# ---- stragglers ------------------------------------------------------------------------------------------------------


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    printed = re.fullmatch(r"1 peer leaves at once; peer 0 left first: (0\.\d\d) of the median speed", decision["done"])
    assert printed is not None
    assert float(printed[1]) == pytest.approx(decision["slow"]["0"], abs=0.006)
    assert decision["done"] in ended.output
    capsys.readouterr()
    assert main(["why", str(job.folder)]) == 0
    assert decision["done"] in " ".join(capsys.readouterr().out.split())
    measured = [row["straggler_fractions"] for row in ended.metrics if "straggler_fractions" in row]
    assert {frozenset(one) for one in measured} == {frozenset("012"), frozenset("12")}


def beside(trace: Trace, *, view: int) -> list[tuple[int, ...]]:
    """How many joiners each peer saw on its host, by step of a view."""
    return [tuple(own["host_joiners"] for own in step.local) for step in trace.steps if step.view == view]


def test_a_peer_that_sleeps_in_its_steps_is_replaced_when_another_one_is_ready(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with started(tmp_path, "-np", 3, "--max", 3, program="paced.py", arguments=[tmp_path, "slowed", 1]) as job:
        job.event("rescale", view=2)
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert [event["peers"] for event in ended.all_of("view")][:2] == [[0, 1, 2], [0, 2, 3]]
    decided: dict[str, Any] = ended.all_of("decision")[0]
    assert (decided["rule"], decided["peers"], decided["when"]) == ("replace_stragglers", [1], "replaced")
    trace, _ = replayed(ended)
    first = beside(trace, view=1)
    assert first[0] == (0, 0, 0)
    assert (1, 1, 1) in first, "the newcomer got ready beside all of them"
    # In a hurry the steps are uneven, so that others may be replaced later.
    assert beside(trace, view=2)[0] == (0, 0, 0), "and takes nothing from them now"


@SOAK
def test_one_wave_of_joiners_grows_the_job_and_replaces_a_straggler(tmp_path: Path) -> None:
    """A straggler of a growing job is replaced, and one wave of joiners serves both."""
    # Two peers run on the first host and one on the second, where the fourth one starts. The second peer is slow.
    (tmp_path / "slow").touch()
    words = [tmp_path, "slowed", 1, 5, 4]
    with started_on_hosts(tmp_path, "-np", 3, "--max", 4, slots=(2, 3), program="paced.py", arguments=words) as hosts:
        job = hosts[0]
        assert job.event("spawned", peer=3)["host"] == 1
        # It is held up, so the growth is under way until the straggler is found, and another one is on its way for it.
        decided = job.event("decision", rule="replace_stragglers")
        assert job.event("spawned", peer=4)["host"] == 1
        (tmp_path / "come").touch()
        job.event("rescale", view=2)
        (tmp_path / "hurry").touch()
        ended, other = hosts.ends()
    assert (ended.code, other.code) == (0, 0), ended.output + other.output
    assert (decided["peers"], decided["when"]) == ([1], "replaced")
    assert [event["peers"] for event in ended.all_of("view")][:2] == [[0, 1, 2], [0, 2, 3, 4]]
    trace, _ = replayed(ended)
    first = beside(trace, view=1)
    assert first[0] == (0, 0, 0)
    assert set(first) <= {(0, 0, 0), (0, 0, 1), (0, 0, 2)}, "no joiner is beside those on the other host"
    assert set(first) & {(0, 0, 1), (0, 0, 2)}, "the third peer trained beside them"
    assert beside(trace, view=2)[0] == (0, 0, 0, 0)


@SOAK
def test_a_replacement_without_a_free_slot_is_asked_for_again_after_a_host_came(tmp_path: Path) -> None:
    """A replacement without a free slot is asked for once, and again when a host has come."""
    # Two peers run on the first host and one on the second. The third one, which would have room, is lost at first.
    with started_on_hosts(
        tmp_path, "-np", 3, "--max", 3, slots=(2, 1, 1), program="paced.py", arguments=[tmp_path, "slowed", 1]
    ) as hosts:
        job = hosts[0]
        job.event("view", version=1)
        hosts[2].signal(signal.SIGKILL)
        job.event("host lost", host=2)
        (tmp_path / "slow").touch()
        refused = job.event("missing")
        # The rule looks every ten steps, and the peer is as slow as before.
        job.steps(len(lines_of(job.folder / "metrics.jsonl")) + 40)
        before = [event for event in lines_of(job.folder / "events.jsonl") if event["event"] == "decision"]
        hosts.back(2)
        job.event("rescale", view=2)
        (tmp_path / "hurry").touch()
        ended, other, _, third = (one.end(code=None) for one in hosts.jobs)
    assert [one.code for one in (ended, other, third)] == [0, 0, 0], ended.output
    assert refused["reason"] == "peer 3: no host has a free slot"
    assert [(one["rule"], one["peers"]) for one in before] == [("replace_stragglers", [1])], "said once, and remembered"
    again = [one for one in ended.all_of("decision") if one not in before]
    assert (again[0]["rule"], again[0]["peers"]) == ("replace_stragglers", [1])
    (newcomer,) = set(ended.all_of("view")[1]["peers"]) - {0, 1, 2}
    assert ended.all_of("view")[1]["peers"] == [0, 2, newcomer]
    assert {event["peer"]: event["host"] for event in ended.all_of("spawned")}[newcomer] == 2
    replayed(ended)
