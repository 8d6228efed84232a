"""The progress of the job, asked by a peer that joins: where the others are in their data."""

from __future__ import annotations

from kungfu.runtime.core.sample_slices import Position
from tests.runtime.peer.running import SHORT_S, job


def test_a_peer_tells_its_place_in_the_phase_that_it_is_in() -> None:
    with job(b"state", b"state") as running:
        first, second = (member.membership.data_position for member in running.members)
        assert second.of_others(1) is None, "it has not done a step"
        first.local.publish(lambda: Position(2, 30))
        assert second.of_others(1) == Position(2, 30)
        assert second.of_others(2) is None, "it is in another phase"
        first.local.begin_phase(2)
        assert second.of_others(2) is None, "and has not done a step of that one"


def test_a_peer_that_reads_says_now_and_then_that_it_is_on_its_way() -> None:
    with job(b"state") as running:
        position = running.members[0].membership.data_position
        reported = running.agent.attached
        position.report_reading()
        assert running.agent.attached == reported
        position._reported -= 6.0
        position.report_reading()
        position.report_reading()
        assert running.agent.attached == reported + 1


def test_the_record_tells_what_was_read_and_an_agent_that_is_gone_keeps_nobody_up() -> None:
    with job(b"state") as running:
        position = running.members[0].membership.data_position
        position.log_caught_up(37, 1.23456)
        running.members[0].membership._protocol.agent_client._flush()
        (report,) = [one for one in running.agent.reports if "caught up" in one]
        assert '"batches": 37' in report
        assert '"seconds": 1.235' in report
        running.members[0].expect_within(SHORT_S)
        running.agent.is_silent = True
        assert position.of_others(1) is None
        position._reported -= 6.0
        position.report_reading()
