"""The control argument of a Python hook, as in listing 1 of the KungFu paper: it asks for sizes between two steps."""

from __future__ import annotations

import math

from kungfu.errors import PolicyError

__all__ = ["Control"]


_MOST = 1e6  # peers: beyond any job, and within what a message can hold


class Control:
    """The first argument of a hook: ``kf.control.every(n).call(fn, *signals)`` calls ``fn(control, *values)``.

    The hook runs inside a barrier, on every peer, with the same values in the order of the signals: whole numbers
    (int64) as ``int``, all others as ``float``; rank 0's request is the one that counts. What a hook returns is
    ignored, and an error that it raises ends the job.

    Attributes:
        size: Peers in the step in which the rule fired.
        step: That step.
        wanted: The size that was asked for so far, None if there is none.
        passed_over: Which call asked for nothing; empty if each asked for a size.

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
        self.passed_over = ""

    def barrier(self) -> None:
        """All peers are between the same two steps: a hook is only ever called there, so this is met already."""

    def rescale(self, peers: float) -> None:
        """Asks for another size of the cluster; the last call of a hook counts, and the job's limits hold.

        Args:
            peers: Peers, rounded. Less than one peer asks for the fewest that the job may have. A number that is not
                finite asks for nothing: what an earlier call asked for stands, and the record says so.

        Raises:
            PolicyError: `peers` is no number.
        """
        try:
            number = float(peers)
        except (TypeError, ValueError) as error:
            what = f"{peers!r}, a {type(peers).__name__}"
            raise PolicyError(f"control.rescale was given {what}; give a number of peers, as in rescale(4)") from error
        if not math.isfinite(number):
            self.passed_over = f"rescale({number}) asks for nothing"
            return
        self.wanted = round(min(max(number, 1.0), _MOST))
