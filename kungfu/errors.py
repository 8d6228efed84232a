"""Every error that kungfu raises, sorted by who has to act.

A message says what is wrong, the value that was wrong, what is allowed, and what to do.
"""

from __future__ import annotations

__all__ = [
    "DeadlineExceeded",
    "InternalError",
    "KungfuError",
    "PeerFailure",
    "PolicyError",
    "UsageError",
]


class KungfuError(Exception):
    """The base of every error that kungfu raises on purpose."""


class UsageError(KungfuError):
    """The user's program or command line asks for something that cannot work."""


class PolicyError(KungfuError):
    """A policy is wrong; raised at ``attach``, before any step runs.

    ``policy`` is its name and ``origin`` the ``file:line`` of the user's that is to be changed, where they are known;
    the message says both.
    """

    def __init__(self, message: str, *, policy: str = "", origin: str = "") -> None:
        super().__init__(message)
        self.policy, self.origin = policy, origin


class PeerFailure(KungfuError):  # noqa: N818 - the field says failure, and the name is in the design
    """Another peer died, or its program failed."""


class DeadlineExceeded(KungfuError):  # noqa: N818 - as gRPC names it
    """A wait with a name ended without what it waited for: says for whom, and how long."""


class InternalError(KungfuError):
    """A defect of kungfu itself; please report it with the log folder."""
