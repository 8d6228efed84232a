"""The synchronization of the shared state: all of it when a view starts, some variables when peers differ.

Peers with different processors or numbers of threads add numbers in different orders, so that equal inputs may give
results that differ in the last bits. The checksums at a barrier reveal such a difference. Only then are values
compared, and only the differing variables are sent.
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
from kungfu.runtime.state.replicated_state import ReplicatedState, TransferContext
from kungfu.runtime.state.serve import StateServer, serving


@contextmanager
def sync_state(
    state: ReplicatedState,
    context: TransferContext,
    *,
    server: StateServer,
    attach: Callable[[], None],
    connected: Callable[[], None] = lambda: None,
    abandoned: AbandonReason = no_abandon_reason,
) -> Iterator[dict[str, int]]:
    """Fetches the state if this peer lacks it, and serves it within the block to other peers that lack it.

    ``attach`` is called in this thread during a fetch, since ``attach`` and the fetch mostly wait for peers. ``attach``
    is not called during a digest, which uses all cores and would delay ``attach`` by more than the digest's own time.

    Args:
        connected: Called once the peers are connected and this peer has a state, before the digest.

    Yields:
        The digest of the state.

    Raises:
        KungfuError: Any error of ``attach`` or ``fetch``; an error in either ends the other.
    """
    rescaled = not context.view.begins  # the first view is no rescale: a resumed job continues unchanged
    with ExitStack() as serving_block:
        # A joiner, or a survivor with fewer steps, fetches the state while its attachment opens.
        if not context.holds_state:
            _fetch_beside(state, context, attach=attach, abandoned=abandoned)
        if rescaled:
            state.rescaled()
        serving_block.enter_context(serving(state, context, server=server))
        if context.holds_state:
            attach()  # only now: peers without the state can fetch it while the attachments open
        connected()
        yield state.digest()


def _fetch_beside(
    state: ReplicatedState, context: TransferContext, *, attach: Callable[[], None], abandoned: AbandonReason
) -> None:
    """Fetches the state in another thread while this thread connects to the other peers by ``attach``."""
    failed: list[PeerFailure] = []

    def abandon_reason() -> PeerFailure | None:
        return failed[0] if failed else abandoned()

    with ThreadPoolExecutor(1, thread_name_prefix="kungfu-sync") as pool:
        fetched = pool.submit(fetch, state, context, abandoned=abandon_reason)
        try:
            attach()
        except BaseException:
            # Without an attachment this peer cannot enter the view: the fetch ends before its deadline.
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
    """Adopts rank 0's values of the shared variables at ``indices`` that differ by rounding only.

    The values are fetched like the state of a joiner, and need additional memory of their size until the block ends.
    Within the block, this peer serves its copy of the values.

    Args:
        context: The view; its only source is rank 0.
        indices: The indices of the variables with differing checksums, in the order of the digest.

    Yields:
        The gap between this peer's and rank 0's values of each variable; no gaps on rank 0.

    Raises:
        KungfuError: Any error of ``fetch``.
    """
    own = [np.ascontiguousarray(one) for one in state.values(indices)]
    copies, gaps = _Copies(own), list[VariableGap]()
    if not context.holds_state:
        # A rank other than 0 fetches into new memory, so that a variable with a larger difference stays unchanged.
        copies = _Copies([np.empty_like(one) for one in own])
        fetch(copies, context, abandoned=abandoned)
        gaps = [gap_of(*one) for one in zip(indices, own, copies.arrays, strict=True)]
        taken = zip(gaps, copies.arrays, strict=True)
        state.assign({gap.index: array for gap, array in taken if gap.is_rounding})
    with serving(copies, context, server=server):
        yield gaps


class _Copies:
    """Copies of some variables, kept apart from the state: rank 0's values being fetched, or this peer's own values."""

    def __init__(self, arrays: Sequence[NDArray[np.generic]]) -> None:
        self.arrays = list(arrays)

    def readable(self) -> Buffers:
        return Buffers.of(self.arrays)

    @contextmanager
    def writable(self) -> Iterator[Buffers]:
        yield self.readable()
