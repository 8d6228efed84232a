"""How a peer comes to hold the state of a view, while its attachment is being plugged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from kungfu.runtime.attachment.protocol import Abandoned, never
from kungfu.runtime.peer.replicate.fetch import fetch
from kungfu.runtime.peer.replicate.lend import Desk, lent
from kungfu.runtime.peer.replicate.place import Place
from kungfu.runtime.peer.replicate.state import ReplicatedState

__all__ = ["settled"]


@contextmanager
def settled(
    state: ReplicatedState,
    place: Place,
    *,
    desk: Desk,
    attach: Callable[[], None],
    abandoned: Abandoned = never,
) -> Iterator[dict[str, int]]:
    """Takes the state if this peer lacks it, and gives its digest; within the block this peer lends what it holds.

    ``attach`` is called meanwhile, in this thread: it mostly waits for the other peers, as a fetch does. Raises what
    ``attach`` and ``fetch`` raise; either ends the other.
    """
    attached: list[str] = []
    rescaled = place.view.version > 1  # the first view is no rescale: what was resumed goes on as it was

    def given_up() -> str | None:
        return attached[0] if attached else abandoned()

    def held() -> dict[str, int]:
        if not place.holds:
            fetch(state, place, abandoned=given_up)
            if rescaled:
                state.rescaled()
        return state.digest()

    with ExitStack() as lending:
        if place.holds:
            if rescaled:
                state.rescaled()
            lending.enter_context(lent(state, place, desk=desk))
        with ThreadPoolExecutor(1, thread_name_prefix="kungfu-settle") as pool:
            digest = pool.submit(held)
            try:
                attach()
            except BaseException:
                attached.append("the attachment of this peer could not be opened")
                raise
        found = digest.result()
        if not place.holds:
            lending.enter_context(lent(state, place, desk=desk))
        yield found
