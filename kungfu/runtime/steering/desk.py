"""The desk of an agent: takes requests in, keeps their ledger, tells of the job. Only the agent's thread calls it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kungfu.runtime.deciding import requests
from kungfu.runtime.deciding.cluster import Cluster, Finishing, InForce, Tick
from kungfu.runtime.deciding.demand import Demand
from kungfu.runtime.deciding.requests import Entry, Ledger, Request, Situation, current, first_answer
from kungfu.runtime.deciding.requests.situation import Scaling
from kungfu.runtime.settings import Settings
from kungfu.runtime.steering.recent import Recent
from kungfu.runtime.steering.service import AboutRequest, Question
from kungfu.runtime.steering.status import JobStatus, PeerStatus, Progress, membership, peer_states, progress

__all__ = ["Answered", "Desk", "Measured"]

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """Lines of the leader's metrics."""

    lines: tuple[Fields, ...]


@dataclass(frozen=True)
class Answered:
    """The leader's word on a demand; see ``requests.Heard``."""

    demand: str
    refusal: str = ""
    result: str = ""


class Desk:
    """Steers one job. ``tell`` writes events into the journal; ``process_of`` gives a peer's process id."""

    def __init__(
        self,
        settings: Settings,
        *,
        scaling: Scaling,
        tell: Callable[[dict[str, Any]], Any],
        process_of: Callable[[int], int],
    ) -> None:
        self._settings, self._scaling, self._tell, self._process_of = settings, scaling, tell, process_of
        self._ledger, self._recent = Ledger(), Recent()
        self._states: dict[int, tuple[str, float]] = {}
        self._over = ""

    def hears(self, event: Any, cluster: Cluster, now: float) -> list[Demand]:
        """What the leader is to be told after ``event``, which ``cluster`` knows of already."""
        self._since(cluster, now)
        match event:
            case Question():
                return self._answer(event, cluster, now)
            case Measured(lines):
                steps = [self._recent.stepped(line) for line in lines]
                undisturbed = () if cluster.starting else tuple(one for one in steps if one is not None)
                return self._step(requests.Measured(undisturbed), cluster, now)
            case Answered(demand, refusal, result):
                return self._step(requests.Heard(demand, refusal, result), cluster, now)
            case InForce():
                return self._step(requests.Viewed(), cluster, now)
            case Finishing(_, leaving) if not leaving:
                self._over = self._over or "training is over: the peers' programs run on to their ends"
                return self._step(requests.Over(), cluster, now)
            case Tick():
                return self._step(requests.Tick(), cluster, now)
        return []

    def noted(self, fields: Fields) -> None:
        """Something stands in the journal now."""
        self._recent.happened(fields)

    def _answer(self, question: Question, cluster: Cluster, now: float) -> list[Demand]:
        matter, demands = question.matter, list[Demand]()
        if isinstance(matter, Request):
            demands = self._step(requests.Asked(matter), cluster, now)
            entry, answer = self._ledger.entries[matter.id], first_answer(self._ledger, matter)
            assert answer is not None
            question.reply.set_result(progress(entry, answer=answer, now=now))
        elif isinstance(matter, AboutRequest):
            question.reply.set_result(self._progress(self._ledger.entries.get(matter.id), now))
        else:
            question.reply.set_result(self._status(cluster, now))
        return demands

    def _step(self, event: requests.Event, cluster: Cluster, now: float) -> list[Demand]:
        before = self._ledger
        self._ledger, demands = requests.step(before, event, self._situation(cluster), now)
        changed = self._ledger is not before
        for name, entry in self._ledger.entries.items() if changed else ():
            known = before.entries.get(name)
            if known is None or known.newest.state != entry.newest.state:
                self._tell(_told(entry, now))
        return demands

    def _situation(self, cluster: Cluster) -> Situation:
        deadlines, host = self._settings.deadlines, self._settings.agent.rpartition(":")[0]
        return Situation(
            cluster.view,
            self._settings.limits,
            self._scaling,
            frozenset({host, "localhost", socket.gethostname()}),
            deadlines.ready_s + 3 * deadlines.wait_s,
            self._over,
        )

    # ---- telling of the job ----------------------------------------------------------------------------------------

    def _status(self, cluster: Cluster, now: float) -> JobStatus:
        under_way = current(self._ledger)
        return JobStatus(
            self._settings.job,
            self._scaling,
            membership(cluster, self._settings.limits, under_way=under_way),
            self._peers(cluster, now),
            self._recent.figures(),
            self._progress(under_way, now),
            self._recent.troubles,
        )

    def _progress(self, entry: Entry | None, now: float) -> Progress | None:
        return None if entry is None else progress(entry, answer=entry.newest, now=now)

    def _peers(self, cluster: Cluster, now: float) -> tuple[PeerStatus, ...]:
        host = self._settings.agent.rpartition(":")[0]
        return tuple(
            PeerStatus(
                peer,
                cluster.view.rank_of(peer) if cluster.view else None,
                host,
                self._process_of(peer),
                state,
                now - self._states[peer][1],
            )
            for peer, state in peer_states(cluster).items()
        )

    def _since(self, cluster: Cluster, now: float) -> None:
        """Remembers since when each peer is as it is."""
        states = peer_states(cluster)
        before = self._states
        self._states = {
            peer: before[peer] if peer in before and before[peer][0] == state else (state, now)
            for peer, state in states.items()
        }


def _told(entry: Entry, now: float) -> dict[str, Any]:
    """An event of the journal."""
    answer = entry.newest
    words = progress(entry, answer=answer, now=now)
    return {
        "event": "request",
        "id": words.id,
        "request": words.words,
        "state": answer.state,
        "reason": answer.reason,
        "view": answer.view,
        "seconds": round(words.seconds, 6),
    }
