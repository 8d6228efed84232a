"""The errors that kungfu raises, grouped by who has to act.

A message states what is wrong, the wrong value, what is allowed, and what to do. Messages are for people: facts that a
program may use for a decision, such as the lost peers, are stored in fields.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Self

__all__ = [
    "DeadlineExceeded",
    "InternalError",
    "KungfuError",
    "PeerFailure",
    "PolicyError",
    "UsageError",
]


class KungfuError(Exception):
    """The base class of every error that kungfu raises on purpose."""

    def prefixed(self, text: str) -> Self:
        """The same error with ``text`` before its message, to describe the circumstances.

        Args:
            text: The prefix, with its separator.

        Returns:
            A copy; this error stays unchanged.

        >>> error = PeerFailure("rank 1 is gone", ranks=[1], view=3).prefixed("in step 7: ")
        >>> str(error), error.ranks, error.view
        ('in step 7: rank 1 is gone', (1,), 3)
        """
        extended = copy.copy(self)
        extended.args = (f"{text}{self}", *self.args[1:])
        return extended


class UsageError(KungfuError):
    """The user's program or command line requests something that cannot work."""


class PolicyError(KungfuError):
    """A policy is wrong; raised at ``attach``, before any step runs.

    Attributes:
        policy: The name of the policy, if known; the message contains it.
        origin: The ``file:line`` in the user's code to change, if known; the message contains it.
    """

    def __init__(self, message: str, *, policy: str = "", origin: str = "") -> None:
        super().__init__(message)
        self.policy, self.origin = policy, origin


class PeerFailure(KungfuError):  # noqa: N818 - the field says failure, and the name is in the design
    """Another peer died, left or is frozen, or its program failed.

    Attributes:
        ranks: The known peers at fault, by rank in ``view``.
        peers: The peers at fault, by id, including peers that are in no view yet.
        view: The version of the view to which ``ranks`` refer; ``None`` for the view in force.
    """

    def __init__(
        self, message: str, *, ranks: Iterable[int] = (), peers: Iterable[int] = (), view: int | None = None
    ) -> None:
        super().__init__(message)
        self.ranks, self.peers, self.view = tuple(ranks), tuple(peers), view


class DeadlineExceeded(KungfuError):  # noqa: N818 - as gRPC names it
    """A wait for named peers or for an event exceeded its deadline.

    Attributes:
        waiting_for: The known missing peers, by rank in ``view``.
        waited_s: The length of the wait in seconds; NaN if unknown.
        peers: The missing peers, by id, including peers that are in no view yet.
        view: The version of the view to which ``waiting_for`` refers; ``None`` for the view in force.
    """

    def __init__(
        self,
        message: str,
        *,
        waiting_for: Iterable[int] = (),
        waited_s: float = math.nan,
        peers: Iterable[int] = (),
        view: int | None = None,
    ) -> None:
        super().__init__(message)
        self.waiting_for, self.waited_s = tuple(waiting_for), waited_s
        self.peers, self.view = tuple(peers), view


class InternalError(KungfuError):
    """A defect of kungfu itself; please report it with the log folder."""
