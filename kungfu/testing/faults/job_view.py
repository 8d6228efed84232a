"""The view that a job's record gives of it while it runs: its steps, its barriers, its members and its joiners."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["JobView", "JobWatcher"]


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

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes one more event in."""
        kind, peer = event.get("event", ""), event.get("peer", -1)
        self.kinds.append(kind)
        if kind == "spawned":
            self.pids[peer], self.host_of[peer] = event["pid"], event.get("host", 0)
        elif kind == "host":
            self.agents[event["host"]] = event["pid"]
            self.hosts.add(event["host"])
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


class JobWatcher:
    """Follows the files of a job's folder as they grow.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text('{"event": "spawned", "peer": 0, "pid": 7}' + chr(10))
    ...     JobWatcher(Path(folder)).look().joiners
    (0,)
    """

    def __init__(self, folder: Path) -> None:
        self._events, self._metrics = _Tail(folder / "events.jsonl"), _Tail(folder / "metrics.jsonl")
        self._sight = JobView()

    def look(self) -> JobView:
        """What is known by now."""
        for event in self._events.more():
            self._sight.add(event)
        for row in self._metrics.more():
            self._sight.steps = max(self._sight.steps, row["step"])
        return self._sight


class _Tail:
    """The whole lines of a file that were not read before."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def more(self) -> Iterator[Mapping[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)
