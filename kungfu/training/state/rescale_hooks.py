"""Functions of the user's that are called where the membership has changed (Elan's RegisterHook)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from kungfu.errors import KungfuError, UsageError

Change = Literal["joined", "grew", "shrank", "exchanged", "recovered"]


@dataclass(frozen=True)
class Rescaled:
    """A change of membership, as one peer sees it.

    Args:
        change: "grew", "shrank", "exchanged" (as many came as went), "recovered" (peers were lost), or "joined": this
            peer has just come in.
        size_before: The peers of the view before; 0 for one that has just come in.
        size: The peers of the new view.
        rank: This peer's rank in the new view.
        step: The steps done when it changed.
    """

    change: Change
    size_before: int
    size: int
    rank: int
    step: int


@dataclass
class RescaleHooks:
    """The hooks of one peer, called in the order in which they were given."""

    _functions: list[Callable[[Rescaled], Any]] = field(default_factory=list)

    def add(self, function: Callable[[Rescaled], Any]) -> None:
        """One more hook; ``UsageError`` for what cannot be called."""
        if not callable(function):
            raise UsageError(f"training.on_rescale({function!r}): takes a function of one argument, what has changed")
        self._functions.append(function)

    def call(self, rescaled: Rescaled) -> None:
        """Calls all of them; what one raises is a ``UsageError`` that names it."""
        for function in self._functions:
            try:
                function(rescaled)
            except KungfuError:  # the hook called something of ours, which says what is wrong
                raise
            except Exception as error:
                name = getattr(function, "__qualname__", repr(function))
                raise UsageError(
                    f"the hook {name} of training.on_rescale, called with {rescaled}, raised "
                    f"{type(error).__name__}: {error}"
                ) from error


def change_of(size_before: int, size: int, *, recovered: bool) -> Change:
    """The name of a change of membership, for a peer that was there before.

    >>> change_of(2, 3, recovered=False), change_of(3, 2, recovered=True)
    ('grew', 'recovered')
    """
    if recovered:
        return "recovered"
    return "exchanged" if size == size_before else "grew" if size > size_before else "shrank"
