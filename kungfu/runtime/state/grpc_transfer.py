"""The transfer of the state from a peer of another host: a gRPC stream, written into memory as it arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kungfu.errors import InternalError
from kungfu.runtime.core.transfer import SourceSlice
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.shared_memory_transfer import in_words
from kungfu.runtime.state.transfer_context import TransferContext

_RETRY_S = 0.1


def receive_over_network(
    buffers: Buffers,
    part: SourceSlice,
    context: TransferContext,
    *,
    on_open: Callable[[Callable[[], None]], bool],
    on_progress: Callable[[int], None],
) -> None:
    """Receives ``part`` over the network.

    Args:
        buffers: The memory to fill.
        part: The range of bytes, and the rank that sends it.
        context: The view, and this peer's rank in it.
        on_open: Receives the function that ends the transfer early; returns False if the end was already requested.
        on_progress: Receives the number of bytes received so far.

    Raises:
        PeerFailure: The source is gone, or refuses the request.
        DeadlineExceeded: The source waited in vain for an earlier rank.
        InternalError: The number of received bytes is wrong.
    """
    request = pb.FetchRequest(
        version=context.view.version, start=part.start, stop=part.stop, rank=context.me.rank, purpose=context.purpose
    )
    came, wanted, began = 0, part.stop - part.start, time.monotonic()
    with rpc.connect(context.view.peers[part.source].address, secret=context.me.secret.hex()) as channel:
        # The transfer was cut before it began.
        if not on_open(channel.close):
            return
        try:
            for chunk in _chunks(channel, request):
                # More bytes than requested, which is an error below.
                if came + len(chunk.data) > wanted:
                    came += len(chunk.data)
                    break
                buffers.write(part.start + came, chunk.data)
                came += len(chunk.data)
                on_progress(came)
        except rpc.RpcError as error:
            source, waited_s = context.view.ids[part.source], time.monotonic() - began
            raise rpc.named(error, what=in_words(part), deadline_s=waited_s, peer=source) from error
    if came != wanted:
        raise InternalError(f"{in_words(part)}: {came} of {wanted} bytes came")


def _chunks(channel: rpc.Channel, request: pb.FetchRequest) -> Iterator[pb.StateChunk]:
    """The stream from the source. A failed connection is retried until the first chunk arrives, not later: a source
    serves each rank once."""
    came = False
    while True:
        try:
            for chunk in PeerServiceStub(channel).Fetch(request):
                came = True
                yield chunk
            return
        except rpc.RpcError as error:
            # The source has begun to serve this rank, which it does only once; or the source or its port refuses.
            if came or not rpc.is_passing(error, channel.address):
                raise
        time.sleep(_RETRY_S)
