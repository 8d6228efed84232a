"""Jobs that lose all their peers, their kungfu-run or all their hosts, and go on from their newest checkpoint."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.main import main
from kungfu.cli.run import main as kungfu_run
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.job_api.job_file import read_job_file
from kungfu.trace import read_trace, replay
from tests.jobs.convex_runs import Run, on_one_host, training
from tests.jobs.harness import Ended, Job, awaited, lines_of
from tests.soak import SOAK

KEEPING = """
import kungfu as kf


@kf.policy
def keeping(training, *, every):
    return kf.control.every(every).checkpoint()
"""
EPOCHS, EVERY = 40, 20


def options(tmp_path: Path, *, restarts: int = 3) -> list[object]:
    """A checkpoint every so many steps, and restarts from them."""
    (tmp_path / "keeping.py").write_text(KEEPING)
    return ["--restarts", restarts, "--policy", f"{tmp_path / 'keeping.py'}:keeping(every={EVERY})"]


def after(job: Job, step: int) -> None:
    """Waits until steps well beyond a checkpoint of a later step than this one are in the record."""

    def is_there() -> bool:
        kept = [event["step"] for event in lines_of(job.folder / "events.jsonl") if event["event"] == "checkpoint"]
        rows = lines_of(job.folder / "metrics.jsonl")
        return bool(kept and rows) and max(kept) > step and rows[-1]["step"] > max(kept) + 3

    job.seen(is_there, what=f"a checkpoint after step {step}", deadline_s=180.0)


def in_one_piece(ended: Ended, restarts: int, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The restarts of a job, whose record must read as that of one job, each step of which counts once."""
    found = ended.all_of("restarted")
    assert len(found) == restarts
    views = [event["version"] for event in ended.all_of("view")]
    assert views == sorted(set(views)), "each view has a number of its own"
    spawned = [event["peer"] for event in ended.all_of("spawned")]
    assert len(spawned) == len({*spawned})
    steps = [row["step"] for row in ended.metrics]
    for one in found:
        assert (one["step"] == 0) is not one.get("path", "").endswith(f"step-{one['step']:08d}")
        assert one["step"] + 1 in steps, "it went on right after the checkpoint"
    capsys.readouterr()
    assert main(["why", str(ended.folder)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("the job starts again from the checkpoint of step") == sum(one["step"] > 0 for one in found)
    assert f"{restarts} restart" in told
    assert told.count("not in metrics.jsonl") == told.count("not in metrics.jsonl: "), "it says why"
    trace = read_trace(ended.folder)
    assert [one.step for one in trace.steps] == sorted({one.step for one in trace.steps})
    assert trace.plan is not None
    assert replay(trace.plan, trace, whose="the run's").differences == ()
    return found


def test_peers_and_then_kungfu_run_are_killed_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = options(tmp_path)
    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, steered):
        after(job, 0)
        again = [*map(str, line), "-np", "2", "--logdir", str(job.folder), "true"]
        assert kungfu_run(again) == 2
        assert f"is in use: kungfu-run, process {job.process.pid} on " in capsys.readouterr().err
        for peer in (0, 1):
            job.signal(signal.SIGKILL, peer=peer)
        first = job.event("restarted")
        assert first["why"].endswith("killed by SIGKILL")
        after(job, first["step"])
        job.signal(signal.SIGKILL)
        killed = job.end(code=-signal.SIGKILL, deadline_s=60.0)
    with (killed.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')  # it was killed within a line

    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, _):
        second = job.event("restarted", deadline_s=60.0, first_peer=4)
        steered.hurry()
        ended = job.end()
    steered.ended(ended)
    assert in_one_piece(ended, 2, capsys)[1] == second
    assert 0 < first["step"] < second["step"]
    assert (second["path"], second["size"]) == (str(ended.folder / "checkpoints" / f"step-{second['step']:08d}"), 2)
    assert [event["file"] for event in ended.all_of("gap")] == ["metrics.jsonl"]

    # The supervisor starts it once more, or somebody removes what it needs.
    assert kungfu_run(again) == 0
    assert "is over" in capsys.readouterr().err


@SOAK
def test_a_job_goes_on_with_the_peers_of_its_checkpoint_and_names_damaged_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*options(tmp_path), "--keep", 9]
    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, steered):
        steered.resize(3)
        job.event("rescale", to=3)
        after(job, job.event("rescale")["step"] + 2 * EVERY)
        job.signal(signal.SIGTERM)
        folder = job.end(code=143, deadline_s=60.0).folder
    kept = sorted((folder / "checkpoints").glob("step-*"))
    (kept[-1] / "state.index").unlink()
    steered.hurry()
    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, _):
        ended = job.end()
    steered.ended(ended)
    (found,) = in_one_piece(ended, 1, capsys)
    assert (found["why"], found["nth"], found["size"]) == ("SIGTERM had ended it", 0, 3)
    assert (found["path"], found["damaged"]) == (str(kept[-2]), [str(kept[-1])])


def test_a_job_on_two_hosts_goes_on_whatever_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The majority, without which one host waits for the other; then the peers of both."""
    line = [*options(tmp_path), "--checkpoints", tmp_path / "kept"]
    with training(tmp_path, *line, size=2, slots=(1, 1), epochs=EPOCHS) as run:
        leads, there = run.hosts.jobs
        after(leads, 0)
        leads.signal(signal.SIGKILL)
        leads.end(code=-signal.SIGKILL, deadline_s=60.0)
        waits = "it asks the others for admission again in"
        there.seen(lambda: waits in there.console.read_text(), what=f"{waits!r}", deadline_s=60.0)
        run.hosts.jobs.append(leads := run.hosts.launch(0, "host-0"))
        first = leads.event("restarted")
        after(leads, first["step"])
        for peer in leads.event("view", version=first["first_view"])["peers"]:
            leads.signal(signal.SIGKILL, peer=peer)
        second = leads.event("restarted", first_view=2000)
        _, there_ended, ended = run.ends(-signal.SIGKILL, 0, 0, tells=-1)
    assert 0 < first["step"] < second["step"]
    assert in_one_piece(ended, 2, capsys) == in_one_piece(there_ended, 2, capsys) == [first, second]
    hosts = {event["peer"]: event["host"] for event in ended.all_of("spawned")}
    assert sorted(hosts.values()) == [0, 0, 0, 1, 1, 1]


# ---- soak ------------------------------------------------------------------------------------------------------------

# The moments of a kill, each with the seconds that may pass until then; each is drawn at least once.
MOMENTS = {"start": 3.0, "decision": 0.5, "checkpoint": 0.02, "training": 3.0, "election": 0.1}


def since_start(job: Job, times: int) -> list[dict[str, Any]]:
    """The events of a job since it was started again for the last of so many times; none before that."""
    events = [{"event": "restarted"}, *lines_of(job.folder / "events.jsonl")]
    starts = [at for at, event in enumerate(events) if event["event"] == "restarted"]
    return events[starts[times] :] if len(starts) > times else []


def await_moment(moment: str, times: int, run: Run, draw: random.Random) -> None:
    """Waits until a job that was started again ``times`` times is in this moment since then, or before an election."""
    job = next(one for one in reversed(run.hosts.jobs) if one.folder.name == "host-0")
    kept = run.steered.folder.parent / "kept"

    def since(kind: str) -> bool:
        return kind in [event["event"] for event in since_start(job, times)]

    def size() -> int:
        return [len(event["peers"]) for event in since_start(job, times) if event["event"] == "view"][-1]

    job.seen(lambda: since("spawned"), what="a start", deadline_s=120.0)
    if moment != "start":
        job.seen(lambda: since("checkpoint"), what="a checkpoint", deadline_s=180.0)
    if moment == "decision":
        run.steered.resize(draw.choice([one for one in (1, 2, 3) if one != size()]))
        job.seen(lambda: since("decision"), what="a decision", deadline_s=120.0)
    if moment == "checkpoint":
        awaited(lambda: [*kept.glob(".writing-*")], what="a checkpoint being written", deadline_s=120.0)
    if moment == "election":  # which one of two hosts wins if each of the three has a peer
        run.steered.resize(3)
        job.seen(lambda: size() == 3, what="three peers", deadline_s=180.0)
    else:
        time.sleep(draw.uniform(0.0, MOMENTS[moment]))


def await_election(job: Job, draw: random.Random) -> None:
    """Waits until an agent has lost its leader, as its reply to a pre-vote says, and for a drawn moment longer."""

    def is_electing() -> bool:
        file, host = read_job_file(job.folder), int(job.folder.name.removeprefix("host-"))
        with rpc.connect(file.agent, secret=file.secret) as channel:
            ask, what = HostServiceStub(channel).RequestVote, "a pre-vote"
            vote = rpc.call(ask, pb.VoteRequest(job=file.job, host=host), deadline_s=60.0, what=what)
        return vote.version > 0 and not vote.hears_leader

    awaited(is_electing, what="the loss of the leader", deadline_s=60.0)
    time.sleep(draw.uniform(0.0, MOMENTS["election"]))


@SOAK
def test_a_joined_host_and_spares_are_there_again_and_all_hosts_have_one_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All peers are killed, then all agents, then the one that leads, which comes back to the job that goes on."""

    def whole_after(job: Job, kind: str, count: int) -> int:
        """Waits until three peers train after so many events of a kind; the step of the last of these."""

        def begun() -> dict[str, Any] | None:
            found = lines_of(job.folder / "events.jsonl")
            places = [at for at, event in enumerate(found) if event["event"] == kind]
            since = found[places[count - 1] :] if len(places) >= count else []
            is_whole = 3 in [len(one["peers"]) for one in since if one["event"] == "view"]
            # By its first measured steps, all hosts hold the view.
            rows = lines_of(job.folder / "metrics.jsonl")
            return since[0] if is_whole and [row["size"] for row in rows[-20:]] == [3] * 20 else None

        return int(job.seen(begun, what=f"three peers after {count} {kind}", deadline_s=180.0)["step"])

    line = [*options(tmp_path), "--checkpoints", tmp_path / "kept", "--spares", 1, "--place", "spread"]
    with training(tmp_path, *line, size=2, most=3, slots=(1, 1), epochs=2 * EPOCHS) as run:
        leads, there = run.hosts.jobs
        leads.steps(5)
        joined = run.hosts.join(3, 2)
        leads.event("host", host=2)
        run.steered.resize(3)
        after(leads, leads.event("rescale", to=3)["step"])
        peers = lines_of(leads.folder / "events.jsonl")
        view = [event["peers"] for event in peers if event["event"] == "view"][-1]
        for peer in view:
            leads.signal(signal.SIGKILL, peer=peer)
        after(leads, whole_after(leads, "restarted", 1))
        for job in (leads, there, joined):
            job.signal(signal.SIGKILL)
        for job in (leads, there, joined):
            job.end(code=-signal.SIGKILL, deadline_s=60.0)
        run.hosts.join(3, 2)
        run.hosts.jobs.extend(run.hosts.launch(host, f"host-{host}") for host in (1, 0))
        there, leads = run.hosts.jobs[-2:]
        whole_after(leads, "restarted", 2)
        leads.signal(signal.SIGKILL)
        whole_after(there, "recovered", 1)
        run.hosts.jobs.append(run.hosts.launch(0, "host-0"))
        there.event("host", host=0, pid=run.hosts[-1].process.pid)
        killed = -signal.SIGKILL
        *_, joined_ended, there_ended, _, ended = run.ends(killed, killed, killed, 0, 0, killed, 0, tells=-3)
    in_one_piece(there_ended, 2, capsys)
    assert ended.events == there_ended.events == joined_ended.events


@SOAK
def test_listed_hosts_come_back_into_the_job_that_a_joined_host_goes_on_with(tmp_path: Path) -> None:
    line = [*options(tmp_path), "--checkpoints", tmp_path / "kept", "--min-hosts", 3]
    with training(tmp_path, *line, size=4, slots=(1, 1), epochs=EPOCHS) as run:
        joined = run.hosts.join(3, 2)
        after(joined, 0)
        for job, size in zip(run.hosts.jobs[:2], (3, 2), strict=True):
            job.signal(signal.SIGKILL)
            joined.event("recovered", to=size)
        run.hosts.jobs.extend(run.hosts.launch(host, f"host-{host}") for host in (0, 1))
        joined.event("rescale", to=4)
        killed = -signal.SIGKILL
        *_, joined_ended, founder, other = run.ends(killed, killed, 0, 0, 0, tells=2)
    names = [{event["job"] for event in ended.all_of("started")} for ended in (joined_ended, founder, other)]
    assert names[1:] == names[:-1], "no other job was founded"
    assert [ended.all_of("restarted") for ended in (joined_ended, founder, other)] == [[], [], []]
    assert {event["host"] for event in joined_ended.all_of("host")[3:]} == {0, 1}


@SOAK
@pytest.mark.parametrize("slots", [(4,), (2, 2, 2)], ids=["one host", "three hosts"])
def test_all_agents_are_killed_at_drawn_moments_and_each_sample_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slots: tuple[int, ...]
) -> None:
    """On several hosts, the one that leads is killed first; at least once, the others while they elect.

    In an election the second voter is frozen, so that the election lasts until the kills."""
    seed = int(os.environ.get("SEED", "1"))
    draw, hosts = random.Random(seed), range(len(slots))
    possible = [moment for moment in MOMENTS if moment != "election" or len(slots) > 1]
    moments, elections = [*possible, *draw.choices(possible, k=4)], 0
    draw.shuffle(moments)
    with capsys.disabled():
        print(f"SEED={seed}: kills in {', '.join(moments)}")
    line = [*options(tmp_path, restarts=9), "--checkpoints", tmp_path / "kept", "--heartbeat", 4, "--place", "spread"]
    line, more = line if len(slots) > 1 else line[:-2], ["--ballast-mb", 8, "--sleep-s", 0.05]
    with training(tmp_path, *line, size=2, most=3, slots=slots, epochs=EPOCHS, more=more) as run:
        for times, moment in enumerate(moments):
            await_moment(moment, times, run, draw)
            alive = run.hosts.jobs[-len(slots) :]
            leads, *others = sorted(alive, key=lambda job: job.folder.name)
            # The election lasts, since the second voter says nothing.
            if moment == "election":
                others[1].signal(signal.SIGSTOP)
            leads.signal(signal.SIGKILL)
            if moment == "election":
                await_election(others[0], draw)
            for job in others:
                time.sleep(draw.choice((0.0, 0.5, 2.0)) if moment != "election" else 0.0)
                job.signal(signal.SIGKILL)
            for job in alive:
                job.end(code=None, deadline_s=60.0)
            if moment == "election":
                is_within = "head" not in [event["event"] for job in others for event in since_start(job, times)]
                elections += is_within
            again = [*hosts]
            draw.shuffle(again)
            again.append(again.pop(again.index(0)))
            run.hosts.jobs.extend(run.hosts.launch(host, f"host-{host}") for host in again)
        run.steered.hurry()
        *_, ended = [job.end(deadline_s=600.0) for job in run.hosts.jobs[-len(slots) :]]
        run.steered.ended(ended)
    assert elections or len(slots) == 1, "no kill was within an election"
    in_one_piece(ended, len(ended.all_of("restarted")), capsys)
