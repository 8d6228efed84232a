"""Performs what the head decides: on this host, through the agents of the others, and by messages to peers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from kungfu.runtime.agent.consensus.orders import Orders
from kungfu.runtime.agent.consensus.standby import Standby
from kungfu.runtime.agent.context import Station
from kungfu.runtime.agent.controller.relay import Relay
from kungfu.runtime.core import cluster as decided
from kungfu.runtime.core.cluster import Cluster
from kungfu.runtime.core.failure import headline
from kungfu.runtime.ipc import messages_pb2 as pb

__all__ = ["Executor"]


class Executor:
    """The head's hands, and what it must know to use them: where peers listen, their processes, their last words.

    ``write`` takes events of the record; ``told`` are those that a person shall see. ``known`` gives the cluster
    as it is known now.
    """

    def __init__(
        self, station: Station, orders: Orders, standby: Standby, *, write: Callable[..., None],
        known: Callable[[], Cluster],
    ) -> None:  # fmt: skip
        self._station, self._orders, self._write = station, orders, write
        self._place, self._several = station.job.place, len(station.job.hosts) > 1
        self._relay = Relay(station.settings, station.put, known=known, term=orders.term)
        self.addresses, self.pids = dict(standby.addresses), dict(standby.pids)
        self.tails: dict[int, list[str]] = {}
        regrouping = standby.cluster.regrouping
        self._mourned = set(regrouping.lost) if regrouping else set()  # in the record already

    def perform(self, command: decided.Command, cluster: Cluster) -> None:
        """Performs a command that does not end anything; ``cluster`` is what followed together with it."""
        match command:
            case decided.Spawn():
                self._spawn(command, joins=cluster.view is not None, threads=cluster.hosts.threads)
            case decided.Kill(peer, reason):
                self._write({"event": "dismissed", "peer": peer, "reason": reason}, told=True)
                self.kill(peer, host=cluster.hosts.of.get(peer, self._place))
            case decided.Form():
                self._relay.form(command)
            case decided.Compare():
                self._relay.compare(command, differs=decided.ProgramDiffers)
            case decided.Remark(usual, others):
                machines = {str(peer): machine for peer, machine in others.items()}
                self._write({"event": "machines differ", "usual": usual, "others": machines}, told=True)
            case decided.Lead():
                self._lead(command)
            case decided.Announce():
                self._announce(command, cluster)
            case decided.Tell():
                self._relay.to_leader(command)
            case decided.Offer():
                self._offer(command)

    def spawned(self, peer: int, pid: int, *, host: int) -> None:
        """A peer was started."""
        self.pids[peer] = pid
        where = {"host": host} if self._several else {}
        self._write({"event": "spawned", "peer": peer, "pid": pid, **where})

    def forget_all_but(self, alive: Collection[int]) -> None:
        """Of those who have ended nothing is said to the other agents, however many they become."""
        self.addresses = {peer: where for peer, where in self.addresses.items() if peer in alive}
        self.pids = {peer: pid for peer, pid in self.pids.items() if peer in alive}

    def kill(self, peer: int, *, host: int) -> None:
        """Ends a peer at once."""
        if host == self._place:
            self._station.household.kill(peer)
        else:
            self._orders.to(host, pb.Orders(kills=[peer]))

    def _spawn(self, command: decided.Spawn, *, joins: bool, threads: int) -> None:
        peer, over = command.peer, command.over
        if command.host != self._place:
            start = pb.Start(peer=peer, joins=joins, over=over, threads=threads)
            self._orders.to(command.host, pb.Orders(starts=[start]))
            return
        settings = replace(self._station.settings, peer=peer)
        pid = self._station.household.start(settings, joins=joins, over=over, threads=threads)
        self.spawned(peer, pid, host=command.host)

    def _offer(self, command: decided.Offer) -> None:
        prepared = command.prepared
        if prepared.ready:
            self._write({"event": "offered", "peers": [peer.id for peer in prepared.ready]})
        if prepared.missing:
            missing = {"event": "missing", "peers": list(prepared.missing), "reason": prepared.reason}
            self._write(missing, told=True)
        self._relay.to_leader(command)

    def _lead(self, command: decided.Lead) -> None:
        survivors, lost = list(command.view.ids), {str(peer): how for peer, how in command.lost.items()}
        told = {"event": "regrouping", "version": command.view.version, "peers": survivors, "lost": lost}
        self._write({**told, "target": command.target}, told=True)
        self._relay.lead(command, unled=decided.LeaderUnreachable)

    def _announce(self, command: decided.Announce, cluster: Cluster) -> None:
        if command.peer < 0:
            self._write({"event": "broken", "version": command.version, "why": command.how}, told=True)
        elif command.version and command.peer not in self._mourned:
            self._mourned.add(command.peer)
            self._write(self._obituary(command, cluster), told=True)
        ending = {id_ for id_, one in cluster.losses.exiting.items() if one.is_gone}
        alive = [peer for id_, peer in self.addresses.items() if id_ in cluster.alive - ending]
        self._relay.announce(command, alive)

    def _obituary(self, command: decided.Announce, cluster: Cluster) -> dict[str, Any]:
        """What it said of its end itself comes before its output, which is complete only when the process has ended."""
        raised = cluster.losses.raised.get(command.peer)
        said = raised.error if raised is not None else headline(self.tails.get(command.peer, ()))
        rank = None if cluster.view is None else cluster.view.rank_of(command.peer)
        return {"event": "lost", "peer": command.peer, "rank": rank, "how": command.how, "error": said}
