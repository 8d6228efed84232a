"""Functions of the user that are called after a change of membership (Elan's RegisterHook)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from kungfu.errors import KungfuError, UsageError

Change = Literal["joined", "grew", "shrank", "exchanged", "recovered"]


@dataclass(frozen=True)
class Rescaled:
    """A change of membership, from the perspective of one peer.

    Args:
        change: "grew", "shrank", "exchanged" (as many peers joined as left), "recovered" (peers were lost), or "joined"
            (this peer has just joined).
        size_before: The size of the previous view; 0 on a peer that has just joined.
        size: The size of the new view.
        rank: This peer's rank in the new view.
        step: The steps done at the time of the change.
    """

    change: Change
    size_before: int
    size: int
    rank: int
    step: int


@dataclass
class RescaleHooks:
    """The hooks of one peer, called in the order in which they were added."""

    _functions: list[Callable[[Rescaled], Any]] = field(default_factory=list)

    def add(self, function: Callable[[Rescaled], Any]) -> None:
        """Adds a hook; raises ``UsageError`` if it is not callable."""
        if not callable(function):
            raise UsageError(f"training.on_rescale({function!r}): takes a function of one argument, what has changed")
        self._functions.append(function)

    def call(self, rescaled: Rescaled) -> None:
        """Calls all hooks; an exception in a hook becomes a ``UsageError`` with the hook's name."""
        for function in self._functions:
            try:
                function(rescaled)
            except KungfuError:  # the hook misused kungfu, and the error already explains how
                raise
            except Exception as error:
                name = getattr(function, "__qualname__", repr(function))
                raise UsageError(
                    f"the hook {name} of training.on_rescale, called with {rescaled}, raised "
                    f"{type(error).__name__}: {error}"
                ) from error


def change_of(size_before: int, size: int, *, recovered: bool) -> Change:
    """The name of a change of membership, on a peer of the previous view.

    >>> change_of(2, 3, recovered=False), change_of(3, 2, recovered=True)
    ('grew', 'recovered')
    """
    if recovered:
        return "recovered"
    return "exchanged" if size == size_before else "grew" if size > size_before else "shrank"
