"""A peer's line to its agent: what is recorded arrives, in order and before the end."""

from __future__ import annotations

import json
import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from kungfu.errors import PeerFailure
from kungfu.event_log.codec import unpack_event
from kungfu.event_log.events import FinishedEvent, UnheardEvent
from kungfu.runtime.core.cluster.events import PeerProgressed, ViewStarted
from kungfu.runtime.core.next_membership import Decision
from kungfu.runtime.core.program_identity import Identity
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import to_report
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceServicer, add_AgentServiceServicer_to_server
from kungfu.runtime.peer.agent_client import AgentClient, _metrics_line, repeated
from kungfu.runtime.settings import Deadlines, Limits, Settings

ME = Peer(3, "127.0.0.1:9")
TRAINED = {"steps": 12, "traces": 1}


def finished(*, leaving: bool) -> FinishedEvent:
    return FinishedEvent(peer=3, leaving=leaving, steps=12, traces=1)


_READ: Mapping[str, Callable[[Any], Any]] = {"event": unpack_event, "metrics": json.loads, "trace": str}


@dataclass
class Agent(AgentServiceServicer):
    """Keeps what it hears, in the order in which it has heard it whole."""

    heard: queue.SimpleQueue[tuple[str, Any]] = field(default_factory=queue.SimpleQueue)
    reporting: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    numbers: list[int] = field(default_factory=list)

    def ReportEvent(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return self._hear("event", to_report(request))

    def ReportRecords(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.numbers.append(request.number)
        if not self.reporting.is_set():
            self.reporting.set()
            self.gate.wait(180.0)
        for record in request.records:
            kind = record.WhichOneof("content")
            content = getattr(record, kind)
            self._hear(kind, _READ[kind](content))
        return pb.Ack()

    def ReportFinished(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return self._hear("finished", unpack_event(request.event))

    def _hear(self, what: str, value: Any) -> pb.Ack:
        self.heard.put((what, value))
        return pb.Ack()

    def next(self) -> tuple[str, Any]:
        return self.heard.get(timeout=180.0)


@contextmanager
def attached(*, wait_s: float = 60.0, held_up: bool = False) -> Iterator[tuple[AgentClient, Agent]]:
    """A peer's line, and the agent at the other end; the first report may be held up until its ``gate`` is set."""
    agent = Agent()
    if not held_up:
        agent.gate.set()
    server = rpc.serve((add_AgentServiceServicer_to_server, agent), host="127.0.0.1", secret="ab", threads=4)
    agent_client = AgentClient(settings(server.address, wait_s=wait_s), ME)
    try:
        yield agent_client, agent
    finally:
        agent_client.close()
        server.stop()


def settings(agent: str, *, wait_s: float = 60.0) -> Settings:
    return Settings("job", 3, agent, "ab", "local", Limits(1, 4), Deadlines(wait_s=wait_s), report_s=0.1)


GROWING = Decision(View(2, (ME,)), Terms(64, 32.0, target_size=5), 5)


def test_the_agent_hears_what_a_peer_goes_through() -> None:
    ready, started = PeerProgressed(ME, True, Identity("digest", "2 threads")), ViewStarted(GROWING.view, GROWING.terms)
    with attached() as (agent_client, agent):
        for event in (ready, GROWING, started):
            agent_client.report(event)
        agent_client.finish(TRAINED, leaving=True)
        heard = [agent.next() for _ in range(4)]
    assert heard == [*(("event", one) for one in (ready, GROWING, started)), ("finished", finished(leaving=True))]


def test_a_report_is_repeated_as_long_as_a_block_continues() -> None:
    reports = queue.SimpleQueue[str]()

    def prepare() -> None:
        with repeated(lambda: reports.put("attached"), every_s=0.01):
            assert [reports.get(timeout=180.0) for _ in range(3)] == ["attached"] * 3
            raise PeerFailure("lost")

    with pytest.raises(PeerFailure, match="lost"):
        prepare()
    assert "kungfu-on-the-way" not in {thread.name for thread in threading.enumerate()}


def numbered(number: int, text: str = "") -> UnheardEvent:
    """An event that is told apart from others by its number."""
    return UnheardEvent(peer=number, error=text)


def test_records_arrive_in_order_whatever_their_stream() -> None:
    with attached() as (agent_client, agent):
        for step in range(500):
            agent_client.record(*(("metrics", partial(dict, peer=step)) if step % 3 else ("events", numbered(step))))
        heard = [agent.next() for _ in range(500)]
    assert [one["peer"] if stream == "metrics" else one.peer for stream, one in heard] == list(range(500))
    assert {stream for stream, _ in heard} == {"metrics", "event"}


PLAIN = {"step": 3, "loss": 0.1, "samples": 2**53, "fractions": {"0": 1.0, "7": 1e-30}, "rules": ["a", "b"], "on": True}
OTHER = {"loss": math.nan, "saw": {"noise": math.inf, "sizes": (1.5, -math.inf)}, "rule": "nan", "speed": None}
NAMED = {"loss": "NaN", "saw": {"noise": "Infinity", "sizes": [1.5, "-Infinity"]}, "rule": "nan", "speed": None}


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        (PLAIN, PLAIN),
        ({"step": 3, "rauschmaß": 1.5, 'name with "quotes"': -0.0},) * 2,
        ({"speed": None, "loss": 1e300},) * 2,
        ({"no text: \ud800": 1.0},) * 2,
        (OTHER, NAMED),
    ],
    ids=["plain", "names", "unknown", "surrogate", "not finite"],
)
def test_a_line_of_the_metrics_is_one_line_that_says_what_was_given(
    fields: dict[str, Any], written: dict[str, Any]
) -> None:
    """A number that is not finite is named however deep it lies, and null is a number that is not known."""
    with attached() as (agent_client, agent):
        agent_client.record("metrics", lambda: fields)
        assert agent.next()[1] == written
    line = _metrics_line(fields)
    assert line.isascii()
    assert line == json.dumps(written)


def test_a_line_that_cannot_be_made_is_left_out_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with attached() as (agent_client, agent):
        for entry in (lambda: {}["loss"], partial(dict, step=1), lambda: {}["loss"], partial(dict, step=2)):
            agent_client.record("metrics", entry)
        agent_client.record("step", lambda: {"trace": "{}", "metrics": {"step": 3}})
        heard = [agent.next() for _ in range(4)]
    assert heard == [("metrics", {"step": 1}), ("metrics", {"step": 2}), ("trace", "{}"), ("metrics", {"step": 3})]
    said = capsys.readouterr().err
    assert said.count("could not make a line of the record") == 1
    assert "KeyError: 'loss'" in said


def test_the_end_comes_after_everything_that_was_recorded_even_if_reports_are_slow() -> None:
    with attached(held_up=True) as (agent_client, agent):
        agent_client.record("events", numbered(1))
        assert agent.reporting.wait(180.0)  # the first record is on its way, and held up
        agent_client.record("events", numbered(2))
        finishing = threading.Thread(target=agent_client.finish, args=(TRAINED,), kwargs={"leaving": False})
        finishing.start()
        with pytest.raises(queue.Empty):
            agent.heard.get(timeout=0.1)
        agent.gate.set()
        finishing.join(180.0)
        heard = [agent.next() for _ in range(3)]
    assert heard == [("event", numbered(1)), ("event", numbered(2)), ("finished", finished(leaving=False))]


def test_the_record_goes_on_when_the_agent_has_missed_a_deadline() -> None:
    with attached(wait_s=1.0, held_up=True) as (agent_client, agent):
        agent_client.record("events", numbered(1))
        assert agent.reporting.wait(180.0)  # and is held up for longer than the peer waits
        agent_client.record("events", numbered(2))
        heard = [agent.next()]
        while heard[-1] != ("event", numbered(2)):  # on a busy machine the second attempt may come too late, too
            heard.append(agent.next())
        agent.gate.set()
        late = agent.next()
    again, last = agent.numbers[1:-1], agent.numbers[-1]
    assert heard[:-1] == [("event", numbered(1))] * len(again)
    assert late == heard[0], "its number says that it is the same"
    assert ({*again}, last) == ({1}, 2)


def test_what_gathered_meanwhile_comes_in_messages_that_gRPC_takes() -> None:  # noqa: N802 - its name
    text = "x" * (1 << 20)
    with attached(held_up=True) as (agent_client, agent):
        agent_client.record("events", numbered(0))
        assert agent.reporting.wait(180.0)
        for number in range(1, 12):
            agent_client.record("events", numbered(number, text))
        agent.gate.set()
        heard = [agent.next() for _ in range(12)]
        assert [event.peer for _, event in heard] == [*range(12)]
        assert agent.numbers == [1, 2, 3, 4]


def test_closing_sends_what_is_left() -> None:
    with attached() as (agent_client, agent):
        agent_client.record("events", numbered(7))
        agent_client.close()
        assert agent.heard.get(block=False) == ("event", numbered(7))


def test_an_agent_that_is_gone_is_named() -> None:
    server = rpc.serve(host="127.0.0.1", secret="ab", threads=1)
    server.stop()
    agent_client = AgentClient(settings(server.address), ME)
    with pytest.raises(PeerFailure, match=r"^lost the agent: "):
        agent_client.report(GROWING)
    agent_client.close()


def test_what_a_function_gives_is_made_off_the_training_thread() -> None:
    with attached() as (agent_client, agent):
        makers: list[int] = []

        def made() -> dict[str, Any]:
            makers.append(threading.get_ident())
            return {"step": 1, "loss": math.nan}

        agent_client.record("trace", made)
        assert agent.next() == ("trace", '{"step":1,"loss":null}')
        assert makers != [threading.get_ident()]
