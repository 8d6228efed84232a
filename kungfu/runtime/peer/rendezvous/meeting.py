"""The course of both rendezvous of a barrier: the peers of a view arrive, rank 0 compares their states and concludes.

All bring the checksums of their variables. Where some differ, the first round has no result: every peer takes the
values of rank 0 for those variables, keeps them where that moves its own by rounding only, and all arrive once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kungfu.errors import KungfuError, PeerFailure
from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_failure, to_failure
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.peer.agent_client import AgentClient
from kungfu.runtime.peer.peer_service import PeerService, rendezvous_key
from kungfu.runtime.peer.rendezvous.state_comparison import from_gaps, variables_to_reconcile
from kungfu.runtime.settings import Settings
from kungfu.runtime.state import ReplicatedState, TransferContext, reconcile_variables

# Makes the result of a rendezvous of the arrivals by rank: on rank 0, once all are there and hold the same state.
Conclude = Callable[[Mapping[int, pb.BarrierArrival]], pb.Admission]


@dataclass(frozen=True)
class Meeting:
    """The parts of a peer with which it meets the others of a view."""

    settings: Settings
    attachment: Attachment
    service: PeerService
    agent_client: AgentClient
    channels: rpc.ChannelPool

    def arrive(
        self, view: View, arrival: pb.BarrierArrival, conclude: Conclude, *, names: Sequence[str]
    ) -> pb.Admission:
        """Meets the other peers of ``view``; rank 0 leads.

        Args:
            view: The view.
            arrival: What this peer brings.
            conclude: Makes the result on rank 0.
            names: Those of the variables of which the arrival has the checksums.

        Returns:
            The result. In the first round there may be none, but the places of the variables that differ.

        Raises:
            DeadlineExceeded: A peer did not come; the error names it.
            PeerFailure: A peer is gone.
            KungfuError: What the coordinator raises, all raise.
        """
        reply = self._lead(view, arrival, conclude, names) if arrival.rank == 0 else self._follow(view, arrival)
        # The coordinator has raised this error, and so do all: it is no loss of the coordinator.
        if reply.HasField("failure"):
            raise to_failure(reply.failure)
        return reply

    def arrive_again(
        self,
        view: View,
        arrival: pb.BarrierArrival,
        differing: Sequence[int],
        conclude: Conclude,
        *,
        names: Sequence[str],
        digest: Callable[[], dict[str, int]],
        state: ReplicatedState,
    ) -> pb.Admission:
        """The second round, as `arrive`: the variables at ``differing`` become rank 0's where that is rounding.

        Args:
            view: The view.
            arrival: What this peer brought to the first round.
            differing: The places of the variables.
            conclude: Makes the result on rank 0.
            names: Those of the variables of which ``digest`` gives the checksums.
            digest: Gives the checksums anew.
            state: The replicated state.
        """
        context = self.transfer(view, arrival.rank, f"values of {_in_words(arrival)}")
        server, abandoned = self.service.state_server, partial(self.abandon_reason, view)
        with reconcile_variables(state, context, differing, server=server, abandoned=abandoned) as gaps:
            again = pb.BarrierArrival()
            again.CopyFrom(arrival)
            again.ClearField("digests")
            again.MergeFrom(pb.BarrierArrival(round=1, digests=digest().values(), gaps=from_gaps(gaps)))
            return self.arrive(view, again, conclude, names=names)

    def transfer(self, view: View, rank: int, purpose: str = "", *, sources: Sequence[int] = (0,)) -> TransferContext:
        """The transfer in which all take the values of a ``purpose`` from rank 0, or the state from the ``sources``."""
        settings = self.settings
        return TransferContext(view, rank, sources, settings.job, settings.secret, settings.deadlines.wait_s, purpose)

    def abandon_reason(self, view: View) -> PeerFailure | None:
        """The failure that makes a wait for the peers of ``view`` pointless: one is gone, or stands still."""
        return self.service.failed_peers.failure_in(view) or self.silent_peers(view)

    def silent_peers(self, view: View) -> PeerFailure | None:
        """The peers of ``view`` that stand still as far as this one can see, ``None`` if none does."""
        silence = self.attachment.silent()
        if not silence.ranks or silence.view != view.version:  # ranks of another view are others
            return None
        text = f"rank {', rank '.join(map(str, silence.ranks))} shows no life"
        return PeerFailure(text, ranks=silence.ranks, peers=map(view.ids.__getitem__, silence.ranks), view=view.version)

    def _follow(self, view: View, arrival: pb.BarrierArrival) -> pb.Admission:
        coordinator = view.peers[0]
        reply: pb.Admission = rpc.call(
            PeerServiceStub(self.channels.to(coordinator.address)).Arrive,
            arrival,
            deadline_s=2.5 * self.settings.deadlines.wait_s,
            what=f"rank 0 (peer {coordinator.id}), leading {_in_words(arrival)}",
            peer=coordinator.id,
            abandoned=partial(self.abandon_reason, view),
        )
        return reply

    def _lead(self, view: View, arrival: pb.BarrierArrival, conclude: Conclude, names: Sequence[str]) -> pb.Admission:
        rendezvous = self.service.rendezvous.at(rendezvous_key(arrival))
        rendezvous.arrive(0, arrival)
        try:
            arrivals = rendezvous.everyone(
                view.size,
                deadline_s=self.settings.deadlines.wait_s,
                what=_in_words(arrival),
                abandoned=partial(self.abandon_reason, view),
            )
            # Some variables are not the same on all peers: they are looked at before anything is concluded.
            differing = variables_to_reconcile(names, arrivals, view)
            reply = pb.Admission(differing=differing) if differing else conclude(arrivals)
        # A peer did not come, is gone, or holds another state, or a joiner could not be admitted: all raise that.
        except KungfuError as error:
            rendezvous.conclude(pb.Admission(failure=from_failure(error)))
            raise
        rendezvous.conclude(reply)
        return reply


def _in_words(arrival: pb.BarrierArrival) -> str:
    """The rendezvous of an arrival, for errors."""
    if arrival.begins_view:
        return f"the start of view {arrival.version}"
    return f"barrier {arrival.number} of view {arrival.version}"
