"""The `training` argument of a policy."""

from __future__ import annotations

from collections.abc import Iterable

from kungfu.errors import PolicyError
from kungfu.signal.node import Source
from kungfu.signal.sources import SOURCES

__all__ = ["TrainingSignals"]


class TrainingSignals:
    """What a step offers to a policy, as attributes: the table is `kungfu.signal.SOURCES`.

    The signals belong to `job`, if one is given: no other job's policies may use them. Raises `PolicyError` for a name
    that no step offers.

    >>> TrainingSignals().local_batch_size.placement
    'agreed'
    """

    def __init__(self, *, job: object = None) -> None:
        self._job = job

    def __getattr__(self, name: str) -> Source:
        if name.startswith("__"):
            raise AttributeError(name)  # Python asks for such names of its own, to copy or to show an object
        if name not in SOURCES:
            raise PolicyError(f"a step offers no {name!r} to a policy; it offers {', '.join(sorted(SOURCES))}")
        return Source(name, self._job)

    def __dir__(self) -> Iterable[str]:
        return sorted(SOURCES)
