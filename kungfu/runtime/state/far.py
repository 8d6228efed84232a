"""The state from a peer of another host: a stream of messages, written into place as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kungfu.errors import InternalError
from kungfu.runtime.core.transfer import SourceSlice
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.near import named
from kungfu.runtime.state.place import Place

__all__ = ["take"]

_AGAIN_S = 0.1


def take(
    buffers: Buffers,
    part: SourceSlice,
    place: Place,
    *,
    on_open: Callable[[Callable[[], None]], bool],
    on_progress: Callable[[int], None],
) -> None:
    """Takes ``part`` over the network; ``on_progress`` hears how many bytes have come. See ``near.take``."""
    request = pb.Slice(version=place.view.version, start=part.start, stop=part.stop, rank=place.rank, what=place.what)
    came, wanted, began = 0, part.stop - part.start, time.monotonic()
    with rpc.connect(place.view.peers[part.source].address, secret=place.secret) as channel:
        if not on_open(channel.close):
            return
        try:
            for chunk in _chunks(channel, request):
                if came + len(chunk.data) > wanted:
                    came += len(chunk.data)
                    break
                buffers.write(part.start + came, chunk.data)
                came += len(chunk.data)
                on_progress(came)
        except rpc.RpcError as error:
            giver, waited_s = place.view.ids[part.source], time.monotonic() - began
            raise rpc.named(error, what=named(part), deadline_s=waited_s, peer=giver) from error
    if came != wanted:
        raise InternalError(f"{named(part)}: {came} of {wanted} bytes came")


def _chunks(channel: rpc.Channel, request: pb.Slice) -> Iterator[pb.Chunk]:
    """What the giver sends. A connection that does not come about is asked for again; once something came it is not,
    for a giver serves each taker once."""
    came = False
    while True:
        try:
            for chunk in PeerServiceStub(channel).Fetch(request):
                came = True
                yield chunk
            return
        except rpc.RpcError as error:
            if came or not rpc.is_passing(error, channel.address):
                raise
        time.sleep(_AGAIN_S)
