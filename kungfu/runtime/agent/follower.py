"""An agent that decides nothing: does on its host what the head says, and writes down what the head tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kungfu.runtime.agent.consensus.service import HeadLost, Ordered
from kungfu.runtime.agent.context import Ending, Signalled, Station
from kungfu.runtime.core.cluster import Cluster, Rules
from kungfu.runtime.core.failure import Failure
from kungfu.runtime.ipc import messages_pb2 as pb

__all__ = ["Follower"]


class Follower:
    """Follows whoever leads the job, until it is over or nobody leads it any more."""

    def __init__(self, station: Station) -> None:
        self._station, self._number = station, station.job.place

    @property
    def cluster(self) -> Cluster:
        """What is known of the job."""
        standby = self._station.allegiance.held.standby
        return standby.cluster if standby else Cluster(Rules(self._station.settings.deadlines))

    @property
    def quiet(self) -> bool:
        """The head looks at the clock."""
        return True

    def hears(self, event: Any) -> Ending | HeadLost | None:
        """Sees to an event; how the job ended here, if that is its end, or that nobody leads it."""
        if isinstance(event, Signalled):
            return self._signalled(event.number)
        if isinstance(event, Ordered):
            return self._ordered(event.orders)
        return event if isinstance(event, HeadLost) and self._station.allegiance.head is None else None

    def _signalled(self, number: int) -> Ending | None:
        """The head knows what a signal to one of several agents means. Until it has heard of one, the next one ends
        this host's part of the job."""
        if self._station.happenings.holds("signalled"):
            return Ending(128 + number)
        self._station.happenings.put(pb.Happening(host=self._number, what="signalled", code=number))
        return None

    def _ordered(self, orders: pb.Orders) -> Ending | HeadLost | None:
        for records in orders.reports:
            self._station.recorder.take(records)
        if orders.term == self._station.allegiance.term:  # else another agent leads by now, and has not decided this
            for start in orders.starts:
                self._start(start)
            for peer in orders.kills:
                self._station.household.kill(peer)
        if orders.HasField("over"):
            over = orders.over
            failure = Failure(over.peer, over.why, over.code, tuple(over.output), over.chosen) if over.failed else None
            return Ending(over.code, failure, leaves=orders.leaves)
        if orders.leaves:
            self._station.allegiance.lose()
            return HeadLost("the host that led the job has left it")
        return None

    def _start(self, start: pb.Start) -> None:
        settings = replace(self._station.settings, peer=start.peer)
        pid = self._station.household.start(settings, joins=start.joins, over=start.over, threads=start.threads)
        self._station.happenings.put(pb.Happening(host=self._number, what="spawned", peer=start.peer, pid=pid))
