"""Shadows: rules that are evaluated and not acted on, compared between the peers where all of them meet.

Peers that disagree on a rule that acts are found at its barrier. Of a rule in the shadow only rank 0 tells, so a peer
that would have decided otherwise would be found only when the rule is let act.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REMEMBERED = 16  # of a peer, from one barrier to the next: the newest ones
_CLOSE = 1e-4  # relative: arithmetic differs in the last bits between processors


@dataclass(frozen=True)
class ShadowAsk:
    """A rule in the shadow that fired after ``step``, and the number that it requests (NaN: none)."""

    rule: str
    step: int
    value: float


def differing(asked: Mapping[int, Sequence[ShadowAsk]]) -> Mapping[int, str]:
    """The requests that not all peers would have made since they met last, by rank and in words; empty without any.

    Args:
        asked: The requests of rules in the shadow, by rank.

    >>> two = ShadowAsk("shadow(grow)", 50, 2.0)
    >>> differing({0: [two], 1: []})
    {0: 'shadow(grow) asks for 2 at step 50', 1: ''}
    >>> differing({0: [two], 1: [ShadowAsk("shadow(grow)", 50, 2.00001)]})
    {}
    """
    lone = {
        rank: [one for one in own if not all(_has(others, one) for others in asked.values())]
        for rank, own in asked.items()
    }
    if not any(lone.values()):
        # All peers would have asked for the same.
        return {}
    return {rank: "; ".join(map(_in_words, found)) for rank, found in lone.items()}


def _has(others: Sequence[ShadowAsk], one: ShadowAsk) -> bool:
    return any((other.rule, other.step) == (one.rule, one.step) and _same(other.value, one.value) for other in others)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE) or (math.isnan(one) and math.isnan(other))


def _in_words(one: ShadowAsk) -> str:
    what = "fires" if math.isnan(one.value) else f"asks for {one.value:g}"
    return f"{one.rule} {what} at step {one.step}"
