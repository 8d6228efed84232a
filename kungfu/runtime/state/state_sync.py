"""The synchronisation of the agreed state: all of it when a view starts, some variables where peers differ.

Peers of another number of threads, or on another processor, add up in another order. The results that each computes
from the same numbers then differ in the last bits, which shows at any barrier by the checksums. Only then are values
looked at, and only those variables are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from kungfu.errors import PeerFailure
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.compare import VariableGap, gap_of
from kungfu.runtime.state.fetch import fetch
from kungfu.runtime.state.replicated_state import ReplicatedState
from kungfu.runtime.state.serve import StateServer, serving
from kungfu.runtime.state.transfer_context import TransferContext


@contextmanager
def sync_state(
    state: ReplicatedState,
    context: TransferContext,
    *,
    server: StateServer,
    attach: Callable[[], None],
    abandoned: AbandonReason = no_abandon_reason,
) -> Iterator[dict[str, int]]:
    """Fetches the state if this peer lacks it, and serves it to the peers that lack it within the block.

    ``attach`` is called in this thread, beside a fetch: both mostly wait for the other peers. It is not called beside
    a digest, which would take all cores, and delay by more than its own time what needs a few moments of them.

    Args:
        state: The state of this peer.
        context: The view, this peer's rank in it, and which ranks hold the state.
        server: Serves peers of other hosts.
        attach: Opens this peer's attachment for the view.
        abandoned: Gives a failure once waiting for the others is in vain.

    Yields:
        The digest of the state.

    Raises:
        KungfuError: As ``attach`` and ``fetch`` do; an error of either ends the other.
    """
    rescaled = not context.view.begins  # the first view is no rescale: a resumed job continues as it was
    with ExitStack() as serving_block:
        # A joiner, or a survivor that had done fewer steps: it takes the state while its attachment opens.
        if not context.holds_state:
            _fetch_beside(state, context, attach=attach, abandoned=abandoned)
        if rescaled:
            state.rescaled()
        serving_block.enter_context(serving(state, context, server=server))
        if context.holds_state:
            attach()  # only now: those who lack the state can take it while the attachments open
        yield state.digest()


def _fetch_beside(
    state: ReplicatedState, context: TransferContext, *, attach: Callable[[], None], abandoned: AbandonReason
) -> None:
    """Fetches the state in another thread while this one attaches."""
    failed: list[PeerFailure] = []

    def abandon_reason() -> PeerFailure | None:
        return failed[0] if failed else abandoned()

    with ThreadPoolExecutor(1, thread_name_prefix="kungfu-sync") as pool:
        fetched = pool.submit(fetch, state, context, abandoned=abandon_reason)
        try:
            attach()
        except BaseException:
            # Without an attachment this peer cannot enter the view: the fetch need not last to its deadline.
            failed.append(PeerFailure("the attachment of this peer could not be opened"))
            raise
    fetched.result()


@contextmanager
def reconcile_variables(
    state: ReplicatedState,
    context: TransferContext,
    indices: Sequence[int],
    *,
    server: StateServer,
    abandoned: AbandonReason = no_abandon_reason,
) -> Iterator[list[VariableGap]]:
    """Takes rank 0's values of the shared variables at ``indices``, and keeps those that differ by rounding only.

    The values come as the state comes to a joiner, and are held once more while that lasts. Within the block this peer
    serves its own copy of them.

    Args:
        state: The state of this peer.
        context: The view; its only source is rank 0.
        indices: The indices of the variables whose checksums differ, in the order of the digest.
        server: Serves peers of other hosts.
        abandoned: Gives a failure once waiting for the others is in vain.

    Yields:
        How far each variable was from rank 0's; nothing on rank 0.

    Raises:
        KungfuError: As ``fetch`` does.
    """
    own = [np.ascontiguousarray(one) for one in state.values(indices)]
    copies, gaps = _Copies(own), list[VariableGap]()
    if not context.holds_state:
        # Any rank but 0: fetch into fresh memory, so that a variable that differs by more stays as it is.
        copies = _Copies([np.empty_like(one) for one in own])
        fetch(copies, context, abandoned=abandoned)
        gaps = [gap_of(*one) for one in zip(indices, own, copies.arrays, strict=True)]
        taken = zip(gaps, copies.arrays, strict=True)
        state.assign({gap.index: array for gap, array in taken if gap.is_rounding})
    with serving(copies, context, server=server):
        yield gaps


class _Copies:
    """Copies of some variables, beside the state: rank 0's values on their way, or its own as they were."""

    def __init__(self, arrays: Sequence[NDArray[np.generic]]) -> None:
        self.arrays = list(arrays)

    def readable(self) -> Buffers:
        return Buffers.of(self.arrays)

    @contextmanager
    def writable(self) -> Iterator[Buffers]:
        yield self.readable()
