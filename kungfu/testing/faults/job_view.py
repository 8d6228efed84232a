"""The view that a job's record gives of it while it runs: its steps, its barriers, its members and its joiners."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kungfu.event_log.growing_file import GrowingFile

__all__ = ["JobView", "JobWatcher"]

_NEWEST_BYTES = 1 << 20


@dataclass
class JobView:
    """The record so far.

    Args:
        steps: Steps done.
        barriers: The steps in which rules fired.
        kinds: The kinds of all events, in their order.
        pids: The process ids of all peers, by id.
        gone: The ids of the peers whose end is in the record.
        agents: The process ids of kungfu-run, by host.
        hosts: The hosts that are in the job.
        host_of: The host on which each peer was started, by id.
        view: The ids of the newest view's peers.
        version: The version of the newest view.
        begins: After how many steps each view began, by version.
        told_at: When the record told of each process, by process id, in seconds since 1970.
        host_names: The names of the hosts that were ever in the job; empty for a job of one.
        awaited: The peers that the job is to have again after a loss; 0 where nobody is awaited.
        requests: The states of the requests from outside, by id.
        stepped_at: When the newest step ended, in seconds since 1970; 0 where that is not told.
    """

    steps: int = 0
    barriers: set[int] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    agents: dict[int, int] = field(default_factory=dict)
    hosts: set[int] = field(default_factory=set)
    host_of: dict[int, int] = field(default_factory=dict)
    view: tuple[int, ...] = ()
    version: int = 0
    begins: dict[int, int] = field(default_factory=dict)
    told_at: dict[int, float] = field(default_factory=dict)
    host_names: dict[int, str] = field(default_factory=dict)
    awaited: int = 0
    requests: dict[str, str] = field(default_factory=dict)
    stepped_at: float = 0.0

    @property
    def members(self) -> tuple[int, ...]:
        """Of the newest view those whose end is not in the record, by id, in the order of their ranks."""
        return tuple(peer for peer in self.view if peer not in self.gone)

    @property
    def joiners(self) -> tuple[int, ...]:
        """Those on their way, by id."""
        return tuple(peer for peer in self.pids if peer not in self.gone and peer not in self.view)

    def peers_of(self, host: int) -> tuple[int, ...]:
        """Those of a host whose end is not in the record, by id."""
        return tuple(peer for peer, where in self.host_of.items() if where == host and peer not in self.gone)

    def settled(self, size: int) -> bool:
        """Whether the newest view has so many peers, all of them alive, nobody is on the way, and it has done a step.

        A joiner holds all of the state only from its first step on.
        """
        trains = self.steps > self.begins.get(self.version, self.steps)
        return len(self.members) == len(self.view) == size and not self.joiners and trains

    @property
    def is_whole(self) -> bool:
        """Whether it has settled with as many peers as it is to have, and no request is under way.

        The size is the job's own choice: that of its policies, its requests, and of those who come for lost peers.
        """
        under_way = "accepted" in self.requests.values()
        return bool(self.view) and self.settled(len(self.view)) and len(self.view) >= self.awaited and not under_way

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes one more event in."""
        kind, peer = event.get("event", ""), event.get("peer", -1)
        self.kinds.append(kind)
        self._add_awaited(kind, event)
        if kind == "spawned":
            self.pids[peer], self.host_of[peer] = event["pid"], event.get("host") or 0
            self._told(event)
        elif kind == "host":
            self.agents[event["host"]] = event["pid"]
            self.hosts.add(event["host"])
            self.host_names[event["host"]] = event.get("name", "")
            self._told(event)
        elif kind == "request":
            self.requests[event["id"]] = event["state"]
        elif kind in ("host left", "host lost"):
            self.hosts.discard(event["host"])
            self.gone.update(self.peers_of(event["host"]))
        elif kind == "view":
            self.view, self.version = tuple(event["peers"]), event["version"]
        elif kind == "span":
            self.begins[event["view"]] = max(event["step"], self.begins.get(event["view"], 0))
        elif kind in ("called", "decision"):
            self.barriers.add(event["step"])
        elif kind in ("peer ended", "dismissed", "lost") or (kind == "finished" and event.get("leaving")):
            self.gone.add(peer)

    def _told(self, event: Mapping[str, Any]) -> None:
        if "time" in event:
            self.told_at[event["pid"]] = event["time"]

    def _add_awaited(self, kind: str, event: Mapping[str, Any]) -> None:
        # Survivors train, and others are to come for those who were lost.
        if kind in ("regrouping", "recovered"):
            self.awaited = event.get("target", 0)
        # They are there, or somebody decided on another size meanwhile; or they will not come.
        elif kind in ("rescale", "missing", "refused"):
            self.awaited = 0


class JobWatcher:
    """Follows the files of a job's folder as they grow.

    Attributes:
        folder: The folder.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text('{"event": "spawned", "peer": 0, "pid": 7}' + chr(10))
    ...     JobWatcher(Path(folder)).look().joiners
    (0,)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events = GrowingFile(folder / "events.jsonl")
        # Of the steps the newest one counts: those of a week need not be read.
        self._metrics = GrowingFile(folder / "metrics.jsonl", at_first_bytes=_NEWEST_BYTES)
        self._sight = JobView()

    def look(self) -> JobView:
        """What is known by now."""
        for event in _objects(self._events.read_all()):
            self._sight.add(event)
        for row in _objects(self._metrics.read_all()):
            self._sight.steps = max(self._sight.steps, row.get("step", 0))
            self._sight.stepped_at = max(self._sight.stepped_at, row.get("time", 0.0))
        return self._sight


def _objects(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            found = json.loads(line)
        # A disk that was full has cut it short.
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
