"""A peer that is late, and one that is told that it will be taken away."""

from __future__ import annotations

import os
import signal

from tests.jobs.harness import QUICKLY_S, started


def test_a_late_peer_is_named_and_one_with_notice_leaves_in_good_order(tmp_path):
    """A late peer is named while the others wait, and one with notice leaves in good order."""
    options = ("-np", 2, "--preemptions", 0, "--deadline", 20, "--heartbeat", 20)
    with started(tmp_path, *options, program="failing.py", arguments=["endless"], executed=True) as job:
        job.steps(3)
        pid = job.event("spawned", peer=1)["pid"]
        os.kill(pid, signal.SIGSTOP)
        late = job.event("late")
        os.kill(pid, signal.SIGCONT)
        job.steps(late["step"] + 5)
        os.kill(pid, signal.SIGTERM)
        left = job.event("finished", peer=1)
        job.event("rescale")
        job.signal(signal.SIGTERM)
        ended = job.end(code=143, deadline_s=QUICKLY_S)
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
