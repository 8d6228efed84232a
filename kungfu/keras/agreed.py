"""Plain values that all peers of a meeting come to hold: those of one of them."""

from __future__ import annotations

from typing import Any

from kungfu.keras.plain_values import pack, unpack
from kungfu.training.state.registered_sync import PeerGroup


def agreed(meeting: PeerGroup, own: Any, *, rank: int = 0) -> Any:
    """The plain values that the peer of this rank brings; those of the others are passed over.

    Cost:
        One message, and a second one where they are many.
    """
    return unpack(meeting.from_rank(rank, pack(own) if meeting.rank == rank else b""))
