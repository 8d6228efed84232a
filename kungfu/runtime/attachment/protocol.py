"""The protocol of attachments: an all-reduce op in the graph, which the runtime connects to the peers of a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kungfu.errors import KungfuError, PeerFailure, UsageError
from kungfu.runtime.ipc.handshake import Credentials

if TYPE_CHECKING:
    # The agent imports this module too, and never loads TensorFlow.
    from kungfu.runtime.attachment.norms import NormsWanted

_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")

# Called during a wait: returns the failure that makes the wait pointless, or ``None`` while there is none.
AbandonReason = Callable[[], PeerFailure | None]


def no_abandon_reason() -> PeerFailure | None:
    """Returns no reason to end a wait early: the default `AbandonReason`, with which waits last until the deadline."""
    return None


def check_rank(me: Credentials) -> None:
    """Raises ``UsageError`` for a rank that is not in 0..size-1, or for an empty secret."""
    if not 0 <= me.rank < me.size or not me.secret:
        raise UsageError(f"a peer needs a rank in 0..size-1 and a secret; rank {me.rank}, size {me.size} was given")


def check_tensors(tensors: Sequence[Any]) -> None:
    """Raises ``UsageError`` for an empty list, or a tensor of a dtype that no attachment sums."""
    if not tensors:
        raise UsageError("all_reduce needs at least one tensor, and was given none")
    wrong = sorted({tensor.dtype.name for tensor in tensors} - {*_DTYPES})
    if wrong:
        allowed = ", ".join(_DTYPES)
        raise UsageError(f"all_reduce was given tensors of {', '.join(wrong)}; allowed are {allowed}: cast them first")


@dataclass(frozen=True)
class LateRanks:
    """The ranks for which message ``tag`` is still waiting after ``waited_s`` seconds; their processes are alive."""

    ranks: tuple[int, ...]
    waited_s: float
    tag: str


@dataclass(frozen=True)
class SilentRanks:
    """The ranks of a view whose processes send no heartbeats."""

    view: int = 0
    ranks: tuple[int, ...] = ()


class Attachment(Protocol):
    """An all-reduce in the graph, and the connection of this all-reduce to the peers of a view.

    Methods marked *Graph* add ops to the graph; the runtime calls the methods marked *Host*, outside the graph. The
    default methods are for a single peer.
    """

    name: str

    def all_reduce(self, values: Sequence[Any], *, prescale: Any, order: Any, tag: str) -> list[Any]:
        """Graph: the sum over peers of every tensor, in one message.

        Args:
            values: One or more tensors of float16, bfloat16, float32, float64, int32 or int64, any shapes; the same
                dtypes and numbers of elements on all peers.
            prescale: Float64 scalar, the factor of all floating-point tensors except the last; 0 contributes zeros.
            order: A variable on the CPU, whose handle orders the collectives and the barrier of a step; it is not read.
            tag: The name of the message, also in errors; equal on all peers.

        Returns:
            The sums, in the dtypes, shapes and order of ``values``; equal on all peers.
        """

    def all_reduce_with_norms(
        self, values: Sequence[Any], *, wanted: NormsWanted, prescale: Any, order: Any, tag: str
    ) -> tuple[list[Any], Any, Any]:
        """Graph: ``all_reduce``, and two float64 scalars: the squared norms of ``values`` and of the sums.

        The norms exclude the last tensor. An attachment whose op computes no norms computes them in separate passes;
        the results are the same if a compiler is available.

        Returns:
            The sums; the squared norm of this peer's values before scaling, NaN if ``prescale`` is 0; and the squared
            norm of the sums, equal on all peers. If the last tensor is float32, the norm of the values replaces every
            ``norm_placeholder()`` in that tensor before it is sent. An unwanted norm is minus infinity, at no cost.
        """
        from kungfu.runtime.attachment.norms import all_reduce_with_norms

        reduce = partial(self.all_reduce, prescale=prescale, order=order, tag=tag)
        return all_reduce_with_norms(reduce, values, wanted=wanted, prescale=prescale)

    def prepare(self, size: int) -> str:
        """Host, on rank 0 of a future view: starts the peers' rendezvous; returns its address, '' if not needed."""
        return ""

    def open(
        self,
        me: Credentials,
        *,
        deadline_s: float,
        addresses: Sequence[str],
        rendezvous: str = "",
        abandoned: AbandonReason = no_abandon_reason,
    ) -> None:
        """Host: connects the op to the peers of a view, after closing its previous connection.

        All peers of the view call this with the same arguments except the rank. After an error the attachment is
        closed.

        Args:
            me: This peer, its view and job; in a view of size 1 the attachment is the identity.
            deadline_s: Seconds within which all peers must call; also the approximate limit of a message's wait for
                another peer.
            addresses: ``HOST:PORT`` of every peer, in rank order.
            rendezvous: The address that ``prepare`` returned on rank 0.
            abandoned: Returns a failure to raise, once waiting for the others is pointless.

        Raises:
            DeadlineExceeded: Some ranks did not connect; the error names them.
            PeerFailure: A peer closed its connection or does not know the secret, or ``abandoned`` returned a failure.
            UsageError: The rank is not in 0..size-1, or the secret is empty.
        """
        return

    def wait_at_most(self, deadline_s: float) -> None:
        """Host, any thread: limits how long a message, if possible even one in progress, waits for another peer."""
        return

    def look_again(self) -> None:
        """Host, any thread: tells an open attachment that ``abandoned`` may return a failure by now, so that a message
        that waits for a lost peer ends soon."""
        return

    def late(self) -> LateRanks | None:
        """Host, any thread: the ranks for which a message has waited for long; returned once, on one waiting peer."""
        return None

    def silent(self) -> SilentRanks:
        """Host, any thread: the ranks whose processes send no heartbeats, if the attachment can detect this."""
        return SilentRanks()

    def failure_of(self, error: Any) -> KungfuError | None:
        """Host: the failure, with the ranks at fault, if TensorFlow's ``error`` comes from a message of this
        attachment; ``None`` for any other error of the graph."""
        return None

    def leave(self) -> None:
        """Host: leaves the group, so that every message fails until the next ``open`` or ``close``. Until then
        ``silent`` still reports the other peers, if the attachment can detect their silence."""
        self.close()

    def close(self) -> None:
        """Host: closes the connection; idempotent."""
        return
