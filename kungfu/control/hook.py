"""What a Python hook may do between two steps: the control argument of listing 1 in the KungFu paper."""

from __future__ import annotations

from kungfu.errors import PolicyError

__all__ = ["Control"]


class Control:
    """What a hook gets first: ``control.every(n).call(fn, *signals)`` calls ``fn(control, *values)``.

    The hook runs inside a barrier, on every peer, with the same values (floats, in the order of the signals); rank 0's
    wish is the one that counts. ``size`` and ``step`` are those of the moment in which the rule fired; ``wanted`` is
    what was asked for so far. What a hook returns is not looked at, and an error that it raises ends the job.

    >>> def grow(control, noise):
    ...     if noise > 100 * control.size:
    ...         control.rescale(control.size + 1)
    >>> control = Control(size=2, step=50)
    >>> grow(control, 250.0)
    >>> control.wanted
    3
    """

    def __init__(self, *, size: int, step: int) -> None:
        self.size, self.step = size, step
        self.wanted: int | None = None

    def barrier(self) -> None:
        """All peers are between the same two steps: a hook is only ever called there, so this is met already."""

    def rescale(self, peers: float) -> None:
        """Ask for a cluster of ``peers`` peers, rounded; the last call of a hook counts, the job's limits hold."""
        if not 0.5 <= peers < 1e6:
            raise PolicyError(f"rescale({peers}): a hook asked for a size that is none; give a finite number from 1 on")
        self.wanted = round(float(peers))
