"""Calls to an agent that has no leader to pass them on to."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kungfu.runtime.agent.consensus.leader_proxy import LeaderClient, LeaderProxy
from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceStub
from tests.runtime.agent.consensus.agents import SETTINGS
from tests.runtime.peer.test_peer_service import Call, RefusedError


def test_a_call_waits_for_a_leader_no_longer_than_the_agent_runs() -> None:
    consensus = ConsensusState(1)
    front = LeaderProxy(object(), AgentServiceStub, LeaderClient(consensus, (), SETTINGS), consensus, deadline_s=300.0)
    answers: list[BaseException] = []

    def call() -> None:
        with pytest.raises(RefusedError) as raised:
            front.ReportEvent(pb.PeerReport(), Call())
        answers.append(raised.value)

    waits: Any = threading.Thread(target=call)
    waits.start()
    consensus.close()
    waits.join(timeout=180.0)
    assert [str(answer) for answer in answers] == ["UNAVAILABLE: no host leads the job at the moment"]
