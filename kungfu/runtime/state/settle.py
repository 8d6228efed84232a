"""How a peer comes to hold the state of a view, while its attachment is being plugged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from kungfu.errors import PeerFailure
from kungfu.runtime.attachment.protocol import Abandoned, never
from kungfu.runtime.state.fetch import fetch
from kungfu.runtime.state.lend import Desk, lent
from kungfu.runtime.state.place import Place
from kungfu.runtime.state.state import ReplicatedState

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

    ``attach`` is called in this thread, beside a fetch: both mostly wait for the other peers. It is not called beside
    a digest, which would have all cores, and hold up by more than its own time what needs a few moments of them.
    Raises what ``attach`` and ``fetch`` raise; either ends the other.
    """
    rescaled = not place.view.begins  # that is no rescale: what was resumed goes on as it was
    with ExitStack() as lending:
        if not place.holds:
            _fetched(state, place, attach=attach, abandoned=abandoned)
        if rescaled:
            state.rescaled()
        lending.enter_context(lent(state, place, desk=desk))
        if place.holds:
            attach()
        yield state.digest()


def _fetched(state: ReplicatedState, place: Place, *, attach: Callable[[], None], abandoned: Abandoned) -> None:
    attached: list[PeerFailure] = []

    def given_up() -> PeerFailure | None:
        return attached[0] if attached else abandoned()

    with ThreadPoolExecutor(1, thread_name_prefix="kungfu-settle") as pool:
        fetched = pool.submit(fetch, state, place, abandoned=given_up)
        try:
            attach()
        except BaseException:
            attached.append(PeerFailure("the attachment of this peer could not be opened"))
            raise
    fetched.result()
