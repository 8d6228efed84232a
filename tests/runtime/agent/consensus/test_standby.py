"""What the agents hold of a job, as it goes from one to the others with every change."""

from __future__ import annotations

import time
from dataclasses import replace

from kungfu.runtime.agent.consensus.standby import Standby, from_standby, to_standby
from kungfu.runtime.core.cluster import Cluster, Rules
from kungfu.runtime.core.requests import Answer, Entry, Ledger, Request
from kungfu.runtime.core.requests.ledger import MOST_FORGOTTEN, REMEMBERED, noted, refusal_of_id
from kungfu.runtime.core.requests.request import Resize
from kungfu.runtime.settings import Deadlines


def asked(ledger: Ledger, name: str) -> Ledger:
    request, answer = Request(name, Resize(9)), Answer("refused", "a size of 9", 1)
    return noted(ledger, Entry(request, answer, answer, 0.0, 1.0))


def sent_s(ledger: Ledger) -> float:
    """Seconds of the processor that one agent takes to send what it holds, and another one to take it."""
    standby, began = Standby(Cluster(Rules(Deadlines())), ledger), time.process_time()
    assert to_standby(from_standby(standby)) == standby
    return time.process_time() - began


def test_ids_of_requests_that_ended_long_ago_take_less_than_those_that_are_remembered() -> None:
    ledger = Ledger()
    for number in range(REMEMBERED + 1):
        ledger = asked(ledger, str(number))
    full = replace(ledger, forgotten=ledger.forgotten * MOST_FORGOTTEN)
    assert refusal_of_id(full, Request("0", Resize(9))) is not None
    assert refusal_of_id(full, Request("new", Resize(9))) is not None, "it takes no others"
    assert refusal_of_id(ledger, Request("new", Resize(9))) is None
    remembered_s = min(sent_s(ledger) for _ in range(3))
    assert min(sent_s(full) for _ in range(3)) < 2 * remembered_s
