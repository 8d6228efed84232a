"""Jobs in which a peer fails or is taken away: the exit code, the first cause, and nothing left."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from tests.jobs.harness import PROGRAMS, QUICKLY_S, ROOT, Ended, Job, left_in, lines_of, ran, started
from tests.soak import SOAK

# Nothing of the job survives the loss of a peer.
ALL_OR_NOTHING = ("--min", 2, "--failures", 0)
# Each executed peer loads TensorFlow, and tears its interpreter down.
EITHER = pytest.mark.parametrize("executed", [False, pytest.param(True, marks=SOAK)], ids=["forked", "executed"])


def failed(ended: Ended) -> str:
    """The error that the record names, which must be on the console too."""
    (event,) = ended.all_of("failed")
    assert event["error"] in ended.output, ended.output
    assert ended.code == event["code"], ended.output
    return event["error"]


def ended_by(number: signal.Signals, job: Job) -> Ended:
    """A signal to the agent ends everything, and nobody waits for anybody."""
    job.signal(number)
    ended = job.end(code=128 + number, deadline_s=QUICKLY_S)
    kinds = [event["event"] for event in ended.events]
    # A peer may have something to tell yet, such as how long its first step took; what comes of the job is told.
    later = {*kinds[kinds.index("ended") + 1 :]}
    assert not later & {"ended", "failed", "lost", "dismissed", "broken", "regrouping", "recovered", "spawned", "view"}
    return ended


def test_a_script_that_raises_at_import_ends_the_job_with_its_error(tmp_path):
    ended = ran(tmp_path, "-np", 2, program="failing.py", arguments=["import"], executed=True, code=1)
    assert "ImportError: no module of that name, on purpose" in failed(ended)


@EITHER
def test_an_error_in_one_rank_is_the_root_and_not_what_the_other_lost_by_it(tmp_path, executed):
    given = {"arguments": ["raise"], "executed": executed, "code": 1}
    ended = ran(tmp_path, "-np", 2, *ALL_OR_NOTHING, program="failing.py", **given)
    assert failed(ended).startswith("rank 1 (peer 1)")
    assert "ValueError: the fifth step was wrong, on purpose" in failed(ended)


def test_a_rank_that_leaves_its_loop_alone_is_an_error_and_no_hang(tmp_path):
    options = ("-np", 2, *ALL_OR_NOTHING, "--deadline", 10)
    ended = ran(tmp_path, *options, program="failing.py", arguments=["break"], code=1)
    assert "rank=1" in failed(ended) or "rank 1" in failed(ended)
    (reported,) = [event for event in ended.all_of("program ended") if event["peer"] == 1]
    assert (reported["rank"], reported["step"], reported["how"], reported["others"]) == (1, 5, "exit", 1)
    assert "rank 1 (peer 1) ended its program (by break, return or sys.exit) after step 5" in ended.output
    assert [row["step"] for row in ended.metrics] == [1, 2, 3, 4, 5], "the record has all that came before"


def test_a_peer_that_raises_and_ends_slowly_delays_no_other_peer(tmp_path):
    """A peer that raises and ends slowly delays no other peer, and the last line names it."""
    with started(tmp_path, "-np", 2, program="failing.py", arguments=["end-slowly", 0, tmp_path / "hurry"]) as job:
        recovered = job.event("recovered")
        (tmp_path / "end").touch()
        slow = job.event("peer ended", peer=1)
        job.event("rescale")
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert slow["how"] == "exit code 1"
    assert slow["time"] > recovered["time"], "the others did not wait for the end of its process"
    (lost,) = ended.all_of("lost")
    assert "its program raised ValueError: the fifth step was wrong, on purpose (" in lost["how"]
    assert lost["error"] == "ValueError: the fifth step was wrong, on purpose"
    assert not ended.all_of("dismissed")
    last = ended.output.rstrip().splitlines()[-1]
    assert last.startswith("kungfu-run: 1 peer was lost to an exception of the program on the way: peer 1: ValueError:")


def test_a_peer_that_is_killed_ends_the_job_quickly_under_its_name(tmp_path):
    with started(tmp_path, "-np", 2, *ALL_OR_NOTHING, program="failing.py", arguments=["endless"]) as job:
        job.steps(5)
        job.signal(signal.SIGKILL, peer=1)
        ended = job.end(code=1, deadline_s=QUICKLY_S)
    assert "rank 1 (peer 1): killed by SIGKILL" in failed(ended)


def test_a_peer_that_dies_before_the_barrier_is_named_and_the_barrier_repeated(tmp_path):
    """A peer that dies between update and barrier is named, and the barrier is held again."""
    options = ("-np", 2, "--max", 3, "--failures", 0)
    with started(tmp_path, *options, program="failing.py", arguments=["killed-in-step"]) as job:
        job.event("decision")
        job.event("recovered")
        ended = ended_by(signal.SIGTERM, job)
    (broken,) = ended.all_of("broken")
    assert broken["why"] == "in the barrier after step 6: peer rank=1 died during statistics"
    (recovered,) = ended.all_of("recovered")
    assert (recovered["step"], recovered["redone"], recovered["to"]) == (6, 0, 1), "step 6 was done, and stays done"
    (decision,) = ended.all_of("decision")
    assert (decision["step"], decision["asked"]) == (5, 3), "what the broken barrier was asked is not forgotten"


@pytest.mark.parametrize(
    "option", [("--deadline", 3), pytest.param(("--heartbeat", 1.5), marks=SOAK)], ids=["deadline", "heartbeat"]
)
def test_a_peer_that_stands_still_is_killed_and_the_others_go_on(tmp_path, option):
    with started(tmp_path, "-np", 2, "--failures", 0, *option, program="failing.py", arguments=["endless"]) as job:
        job.steps(3)
        job.signal(signal.SIGSTOP, peer=1)
        job.event("recovered", to=1)
        steps = len(lines_of(job.folder / "metrics.jsonl"))
        job.steps(steps + 5)
        ended = ended_by(signal.SIGTERM, job)
    (dismissed,) = ended.all_of("dismissed")
    assert dismissed["peer"] == 1
    assert "it did not regroup with the others" in dismissed["reason"]
    assert "rank=1" in dismissed["reason"]
    (recovered,) = ended.all_of("recovered")
    (between_s,) = (
        after["time"] - before["time"]
        for before, after in itertools.pairwise(ended.metrics)
        if (before["size"], after["size"]) == (2, 1)
    )
    assert recovered["stop_s"] + recovered["step_s"] == pytest.approx(between_s, abs=0.25), "from step to step"
    assert recovered["stop_s"] > option[1]


def test_a_leader_that_stands_still_at_a_barrier_is_killed_before_the_deadline(tmp_path):
    """A leader that stands still at a barrier is killed long before the barrier's deadline."""
    options = ("-np", 2, "--failures", 0, "--heartbeat", 1.5)
    with started(tmp_path, *options, program="failing.py", arguments=["stopped-in-barrier"]) as job:
        job.steps(6)
        recovered = job.event("recovered", to=1)
        ended = ended_by(signal.SIGTERM, job)
    dismissed = ended.all_of("dismissed")[0]
    assert dismissed["peer"] == 0
    assert dismissed["reason"].endswith("rank 0 shows no life"), dismissed
    assert recovered["redone"] == 0
    assert recovered["stop_s"] > 1.5, "the wait in the barrier is part of the stop"
    assert recovered["stop_s"] < 45, "its deadline is 60 s"


@EITHER
def test_an_interrupt_ends_everything_as_quickly(tmp_path, executed):
    with started(tmp_path, "-np", 2, program="failing.py", arguments=["endless"], executed=executed) as job:
        job.steps(3)
        ended_by(signal.SIGINT, job)


def test_a_job_that_has_not_yet_begun_to_train_ends_as_quickly(tmp_path):
    with started(tmp_path, "-np", 2, program="failing.py", arguments=["endless"], executed=True) as job:
        job.event("spawned", peer=1)
        job.signal(signal.SIGTERM)
        job.end(code=143, deadline_s=QUICKLY_S)


@pytest.mark.parametrize(
    ("how", "deadline_s", "message", "event"),
    [
        # The first two have to get ready in that time too.
        pytest.param("never-ready", 60, "waited 60 s for peer 2 to get ready", "dismissed", marks=SOAK),
        ("import", 120, "exit code 1", "peer ended"),
    ],
)
def test_the_run_goes_on_without_a_joiner_that_does_not_get_ready(tmp_path, how, deadline_s, message, event):
    options, arguments = ("-np", 2, "--max", 3, "--ready-deadline", deadline_s), (how, 3, tmp_path / "hurry")
    with started(tmp_path, *options, program="failing.py", arguments=arguments) as job:
        job.event("refused", asked=3, size=2, deadline_s=180)
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert ended.sizes == [2]
    (missing,) = ended.all_of("missing")
    assert missing["peers"] == [2]
    assert message in missing["reason"]
    assert ended.all_of(event)[0]["peer"] == 2
    assert [row["step"] for row in ended.metrics] == list(range(1, 301)), "no step was lost over it"


@pytest.mark.parametrize(("how", "hears", "steps"), [("stop", 2, 10), ("last", 1, 40)], ids=["stop", "last"])
def test_the_others_end_well_if_rank_0_dies_while_it_announces_the_end(tmp_path, how, hears, steps):
    """The others end well if rank 0 dies while it tells them that training is over.

    Who lives follows, or leads, when it has heard it and the other one has not.
    """
    options = ("-np", 3, "--min", 2, "--failures", 0, "--deadline", 20)
    ended = ran(tmp_path, *options, program="half_heard.py", arguments=[how, hears, tmp_path])
    assert [event["how"] for event in ended.all_of("lost")] == ["killed by SIGKILL"]
    found = left_in(tmp_path)
    assert found[1] == found[2]
    assert found[1]["steps"] == steps
    assert {event["peer"] for event in ended.all_of("finished")} == found.keys() == {1, 2}


def test_a_late_peer_is_named_and_one_with_notice_leaves_in_good_order(tmp_path):
    """A late peer is named while the others wait, and one with notice leaves in good order."""
    options = ("-np", 2, "--preemptions", 0, "--deadline", 20, "--heartbeat", 20)
    with started(tmp_path, *options, program="failing.py", arguments=["endless"]) as job:
        job.steps(3)
        job.signal(signal.SIGSTOP, peer=1)
        late = job.event("late")
        job.signal(signal.SIGCONT, peer=1)
        job.steps(late["step"] + 5)
        job.signal(signal.SIGTERM, peer=1)
        left = job.event("finished", peer=1)
        job.event("rescale")
        ended = ended_by(signal.SIGTERM, job)
    assert (late["ranks"], late["in"]) == ([1], "gradients")
    assert 5.0 <= late["waited_s"] < 20.0
    assert ended.all_of("noticed")[0]["peer"] == 1
    assert left["leaving"] is True
    assert left["step_s"]["count"] > late["step"]
    assert left["step_s"]["max"] >= 4.0, "the pause was a step's"
    assert 0.0 < left["step_s"]["p50"] < 2.0
    (rescale,) = ended.all_of("rescale")
    assert (rescale["from"], rescale["to"], rescale["left"]) == (2, 1, [1])
    assert ended.all_of("failed") == ended.all_of("recovered") == []


# ---- no text says what has happened ----------------------------------------------------------------------------------

# Errors of kungfu, how processes end, and the failures of the compiled all-reduce draw their texts from words that
# accuse rank 0 of everything. Kinds, ranks and ids are as they are, and such jobs end as they do in plain English.
MEANINGLESS = {"PYTHONPATH": os.pathsep.join(map(str, (PROGRAMS / "meaningless", ROOT)))}


@SOAK
def test_who_is_killed_is_lost_and_who_stands_still_is_ended_and_nobody_else(tmp_path: Path) -> None:
    options = ("-np", 3, "--failures", 0, "--heartbeat", 2)
    running = started(tmp_path, *options, program="failing.py", arguments=["endless"], environment=MEANINGLESS)
    with running as job:
        job.steps(3)
        job.signal(signal.SIGKILL, peer=1)
        killed = job.event("recovered", to=2)
        job.signal(signal.SIGSTOP, peer=2)
        stopped = job.event("recovered", to=1)
        ended = ended_by(signal.SIGTERM, job)
    assert killed["lost"].keys() == {"1"}
    assert max(killed["stop_s"], stopped["stop_s"]) < 45, "a wait while they train may take 60 s"
    assert [event["peer"] for event in ended.all_of("dismissed")] == [2], "rank 0, whom every text accuses, is well"
    assert "died" not in ended.all_of("broken")[0]["why"], "the texts do not say so"


@pytest.mark.parametrize(
    ("how", "options", "code"),
    [
        pytest.param("break", ("-np", 2, "--min", 2, "--failures", 0), 1, marks=SOAK),
        ("small-batch", ("-np", 2), 2),
        ("before-attach", ("-np", 1), 2),
    ],
    ids=["a rank leaves its loop alone", "a refusal in the first step", "a refusal before attach"],
)
def test_a_job_that_cannot_go_on_ends_with_the_code_of_its_cause(
    tmp_path: Path, how: str, options: tuple[object, ...], code: int
) -> None:
    ended = ran(tmp_path, *options, program="failing.py", arguments=[how], environment=MEANINGLESS, code=code)
    (failed,) = ended.all_of("failed")
    assert failed["code"] == code
    assert how != "break" or failed["peer"] == 1
