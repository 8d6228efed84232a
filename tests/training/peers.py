"""Several peers in one process: each has an attachment of its own, and all are plugged into one another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

from kungfu.runtime.attachment.local import LocalAttachment

_DEADLINE_S = 180.0
_views = count(1)
_groups = count(500)


@contextmanager
def attached_peers(size: int) -> Iterator[Callable[[Callable[[int, LocalAttachment], Any]], list[Any]]]:
    """Gives ``run``: it calls a function with rank and attachment of every peer at once, each in a thread."""
    view, peers = next(_views), [LocalAttachment(group=next(_groups)) for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:

        def run(function: Callable[[int, LocalAttachment], Any]) -> list[Any]:
            running = [pool.submit(function, rank, peer) for rank, peer in enumerate(peers)]
            return [one.result(_DEADLINE_S) for one in running]

        def enter(rank: int, peer: LocalAttachment) -> None:
            job = f"training-{os.getpid()}-{view}"
            peer.open(
                rank=rank, size=size, job=job, view=view, deadline_s=_DEADLINE_S, secret=b"tests", addresses=[""] * size
            )

        run(enter)
        try:
            yield run
        finally:
            run(lambda rank, peer: peer.close())
