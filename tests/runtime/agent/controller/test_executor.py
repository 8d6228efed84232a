"""What the record tells of commands as they are performed, by a leader of real parts whose peers do not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kungfu.runtime.agent.controller.job_controller import JobController
from kungfu.runtime.core.cluster.events import PeerProgressed
from kungfu.runtime.core.cluster.transitions import start_job
from kungfu.runtime.core.view import Peer
from tests.runtime.agent.consensus.agents import agents
from tests.runtime.agent.test_leader import context_of


@pytest.mark.parametrize("phase", [1, 2])
def test_a_job_that_is_resumed_in_a_later_fit_is_told_to_begin_with_its_phase(tmp_path: Path, phase: int) -> None:
    with agents(1) as (hosts, (founder,)):
        context = context_of(founder, hosts, tmp_path)
        controller = JobController(context, None)
        controller.cluster, _ = start_job(2, limits=context.job.limits, now=0.0)
        for number in range(2):
            ready = PeerProgressed(Peer(number, "127.0.0.1:1"), ready=True, phase=phase)
            assert controller.handle(ready) is None
        controller.replicator.close()
        context.recorder.journal.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    told: list[Any] = [(one["phase"], one["view"], one["peers"]) for one in lines if one["event"] == "phase"]
    assert told == ([(2, 1, [0, 1])] if phase == 2 else []), "phase 1 is not told"
