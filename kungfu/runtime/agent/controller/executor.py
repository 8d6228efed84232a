"""Performs the leader's commands: on this host, through the agents of other hosts, and by messages to peers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from kungfu.event_log import events
from kungfu.runtime.agent.consensus.replication import Replicator
from kungfu.runtime.agent.consensus.state import JobSnapshot
from kungfu.runtime.agent.context import AgentContext
from kungfu.runtime.agent.controller.peer_client import PeerClient
from kungfu.runtime.core.cluster import events as decided
from kungfu.runtime.core.cluster.cluster import Cluster, exit_in_words
from kungfu.runtime.core.failure import headline
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import Asked
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import from_spawn


class Executor:
    """Performs commands, and stores the addresses, the process ids and the last output lines of peers.

    Args:
        context: The context of the agent.
        replicator: Carries commands to followers.
        snapshot: The initial state of the leader.
        record: Records an event; with ``shown`` also shows it to people.
        known: Returns the leader's newest knowledge of the cluster.

    Attributes:
        addresses: The address of each peer, by its id.
        pids: The process id of each peer, by its id.
        tails: The last lines that each ended peer printed, by its id.
    """

    def __init__(
        self, context: AgentContext, replicator: Replicator, snapshot: JobSnapshot, *, record: Callable[..., None],
        known: Callable[[], Cluster],
    ) -> None:  # fmt: skip
        self._context, self._replicator, self._record = context, replicator, record
        self._known = known
        self._own_host, self._several = context.job.own_host, context.job.is_networked
        self._peers = PeerClient(context.settings, context.put, known=known, term=replicator.term)
        self.addresses, self.pids = dict(snapshot.addresses), dict(snapshot.pids)
        self.tails: dict[int, list[str]] = {}
        regrouping = snapshot.cluster.regrouping
        self._recorded_lost = set(regrouping.lost) if regrouping else set()

    def perform(self, command: decided.Command, cluster: Cluster) -> None:
        """Performs a command that does not end the job; ``cluster`` is the state that was decided with the command."""
        match command:
            case decided.Spawn():
                self._spawn(command, cluster)
            case decided.ReportSpare():
                self._record(events.SpareEvent(**asdict(command)), shown=True)
            case decided.Kill(peer, reason):
                self._record(events.DismissedEvent(peer=peer, reason=reason), shown=True)
                self.kill(peer, host=cluster.hosts.of.get(peer, self._own_host))
            case decided.AdmitFirstView():
                # A resumed job may begin with a later phase.
                if (phase := cluster.phases.number) > 1:
                    self._record(events.PhaseEvent(phase=phase, view=command.view.version, peers=command.view.ids))
                self._peers.admit_first_view(command)
            case decided.AdmitPhase():
                self._record(events.PhaseEvent(phase=command.number, view=command.view.version, peers=command.view.ids))
                self._peers.admit_phase(command)
            case decided.ComparePrograms():
                self._peers.compare(command)
            case decided.ReportMachines(usual, others):
                machines = {str(peer): machine for peer, machine in others.items()}
                self._record(events.MachinesDifferEvent(usual=usual, others=machines), shown=True)
            case decided.AdmitSurvivors():
                self._admit_survivors(command)
            case decided.AnnounceFailure():
                self._announce(command, cluster)
            case JoinerOffer():
                self._record_offer(command)
                self._peers.send_to_rank_0(command)
            case Asked():
                self._peers.send_to_rank_0(command)

    def record_event(self, event: Any, cluster: Cluster) -> None:
        """Records an event of a peer; ``cluster`` is the state before the event. `perform` records commands."""
        if isinstance(event, decided.ViewStarted):
            self._record(events.ViewEvent(version=event.view.version, peers=tuple(event.view.ids)), shown=True)
        elif isinstance(event, decided.ProcessEnded):
            self._record(events.PeerEndedEvent(peer=event.peer, how=exit_in_words(event.code)))
        elif isinstance(event, decided.ProgramExiting):
            self._record_exit(event, cluster)
        elif isinstance(event, decided.PeerNoticed):
            self._record(events.NoticedEvent(peer=event.peer), shown=True)
        elif isinstance(event, decided.PeerProgressed):
            self.addresses[event.peer.id] = event.peer

    def _record_exit(self, event: decided.ProgramExiting, cluster: Cluster) -> None:
        """Records, once per peer, that the program of a peer in the view exits or has left its training loop."""
        peer, exit = event.peer, event.exit
        # The peer does not train, or its exit was recorded before.
        if cluster.view is None or peer not in cluster.members or peer in cluster.losses.exiting:
            return
        others = len(cluster.members) - 1
        ended = events.ProgramEndedEvent(
            peer=peer, rank=cluster.view.rank_of(peer), step=exit.step, others=others, how=exit.kind, error=exit.error
        )
        self._record(ended, shown=True)

    def close(self) -> None:
        """Drops the messages that have not reached their peers yet, because this agent is ending."""
        self._peers.close()

    def record_spawn(self, peer: int, pid: int, *, host: int) -> None:
        """Stores the process id of a peer that was started, and records the start."""
        self.pids[peer] = pid
        is_spare = peer in self._known().spares.waiting
        self._record(events.SpawnedEvent(peer=peer, pid=pid, host=host if self._several else None, spare=is_spare))

    def forget_all_but(self, alive: Collection[int]) -> None:
        """Removes the data of ended peers, so that the replicated state does not grow with every peer."""
        self.addresses = {peer: where for peer, where in self.addresses.items() if peer in alive}
        self.pids = {peer: pid for peer, pid in self.pids.items() if peer in alive}

    def kill(self, peer: int, *, host: int) -> None:
        """Kills a peer at once, on this host or through the agent of its host."""
        if host == self._own_host:
            self._context.supervisor.kill(peer)
        # The agent of the peer's host kills the peer.
        else:
            self._replicator.send(host, pb.ReplicateRequest(kills=[peer]))

    def _spawn(self, command: decided.Spawn, cluster: Cluster) -> None:
        # The agent of that host starts the peer, and reports the process.
        if command.host != self._own_host:
            self._replicator.send(command.host, pb.ReplicateRequest(starts=[from_spawn(command)]))
            return
        pid = self._context.supervisor.start(self._context.settings_in(cluster), command)
        self.record_spawn(command.peer, pid, host=command.host)

    def _record_offer(self, command: JoinerOffer) -> None:
        if command.ready:
            self._record(events.OfferedEvent(peers=tuple(peer.id for peer in command.ready)))
        # Some of the requested peers will not come: people see the reason.
        if command.missing:
            self._record(events.MissingEvent(peers=command.missing, reason=command.reason), shown=True)

    def _admit_survivors(self, command: decided.AdmitSurvivors) -> None:
        view, lost = command.view, {str(peer): how for peer, how in command.lost.items()}
        event = events.RegroupingEvent(version=view.version, peers=tuple(view.ids), lost=lost, target=command.target)
        self._record(event, shown=True)
        self._peers.admit_survivors(command)

    def _announce(self, command: decided.AnnounceFailure, cluster: Cluster) -> None:
        # A view is broken, but no process is gone.
        if command.peer < 0:
            self._record(events.BrokenEvent(version=command.version, why=command.how), shown=True)
        # A peer of the view is gone: recorded once, even if it is announced repeatedly.
        elif command.version and command.peer not in self._recorded_lost:
            self._recorded_lost.add(command.peer)
            self._record(self._loss_event(command, cluster), shown=True)
        ending = {id_ for id_, one in cluster.losses.exiting.items() if one.is_gone}
        alive = [peer for id_, peer in self.addresses.items() if id_ in cluster.alive - ending]
        self._peers.announce(command, alive)

    def _loss_event(self, command: decided.AnnounceFailure, cluster: Cluster) -> events.LostEvent:
        """The event that records the loss of a peer, with the error that the peer reported or else printed."""
        raised = cluster.losses.raised.get(command.peer)
        said = raised.error if raised is not None else headline(self.tails.get(command.peer, ()))
        rank = None if cluster.view is None else cluster.view.rank_of(command.peer)
        return events.LostEvent(peer=command.peer, rank=rank, how=command.how, error=said)
