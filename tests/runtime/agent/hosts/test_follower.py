"""An agent that follows another one, and what signals mean to it."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kungfu.runtime.agent.agent import Agent as WholeAgent
from kungfu.runtime.agent.follower import Follower
from kungfu.runtime.agent.hosts.entering import welcome
from kungfu.runtime.agent.hosts.orders import Orders
from kungfu.runtime.agent.record.journal import Journal
from kungfu.runtime.agent.station import CUT_OFF, Ending, Job, Signalled
from kungfu.runtime.hosts import Host
from kungfu.runtime.wire import messages_pb2 as pb
from tests.runtime.agent.hosts.agents import SETTINGS, agents, follow, free_port, state
from tests.runtime.agent.hosts.test_head import Quiet, station_of


def test_a_signal_is_a_notice_whatever_else_the_head_has_yet_to_hear_of_and_a_second_one_the_end(
    tmp_path: Path,
) -> None:
    with agents(2) as (hosts, (_, other)):
        follow(other, 0, text=state(0, 1, hosts=2))
        station = station_of(other, hosts, tmp_path)
        follower, ended = Follower(station), pb.Happening(host=1, what="ended", peer=1)
        station.happenings.put(ended)
        assert follower.hears(Signalled(signal.SIGTERM)) is None
        assert station.happenings.first(0.0) == ended
        assert follower.hears(Signalled(signal.SIGTERM)) == Ending(128 + signal.SIGTERM), "the head has heard of none"
        station.recorder.journal.close()


def test_a_host_that_was_taken_in_and_hears_nothing_more_of_the_head_stops(tmp_path: Path) -> None:
    with agents(1) as (hosts, (head,)):
        hosts[1] = Host("127.0.0.2", 4, free_port("127.0.0.2"))
        head.allegiance.lead("job", 1)

        def led() -> None:
            head.heard.get(timeout=10.0).reply.set_result(welcome(replace(SETTINGS, agent=head.server.address)))
            time.sleep(0.3)
            head.stop()

        leading = threading.Thread(target=led)
        leading.start()
        journal = Journal(tmp_path)
        job = Job((sys.executable,), 2, replace(SETTINGS, agent="127.0.0.2"), {}, hosts=(hosts[0], hosts[1]), place=1)
        ending = WholeAgent(job, journal=journal, console=Quiet()).run()
        journal.close()
        leading.join(timeout=10.0)
    assert ending.code == CUT_OFF
    assert ending.failure is not None
    assert "has ended or cannot be reached, before the first view" in ending.failure.text


def test_an_interrupt_ends_this_host_when_the_head_is_lost_before_it_hears_of_it(tmp_path: Path) -> None:
    over, needed_more = threading.Event(), threading.Event()
    with agents(1) as (hosts, (head,)):
        hosts[1] = Host("127.0.0.2", 4, free_port("127.0.0.2"))
        head.allegiance.lead("job", 1)

        def led() -> None:
            heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
            orders = Orders(SETTINGS, hosts, head=0, term=1, clock=time.monotonic, put=heard.put)
            head.heard.get(timeout=10.0).reply.set_result(welcome(replace(SETTINGS, agent=head.server.address)))
            orders.begin(1)
            orders.settle(state(0, 1, hosts=2))
            head.stop()
            os.kill(os.getpid(), signal.SIGINT)
            orders.close()

        def insist() -> None:
            limit_s = 20.0
            while not over.wait(limit_s):
                needed_more.set()
                os.kill(os.getpid(), signal.SIGINT)
                limit_s = 0.5

        threads = [threading.Thread(target=led), threading.Thread(target=insist)]
        for thread in threads:
            thread.start()
        journal = Journal(tmp_path)
        job = Job((sys.executable,), 2, replace(SETTINGS, agent="127.0.0.2"), {}, hosts=(hosts[0], hosts[1]), place=1)
        ending = WholeAgent(job, journal=journal, console=Quiet()).run()
        over.set()
        journal.close()
        for thread in threads:
            thread.join(timeout=10.0)
    assert ending == Ending(128 + signal.SIGINT)
    assert not needed_more.is_set(), "one interrupt is enough"
