"""Shadows: what rules that nobody acts on would have asked for, held against each other where all peers meet.

A rule that acts is compared by what comes of it. One in the shadow is told by rank 0 alone, so a peer that would have
decided otherwise would be found out only when the rule is let act.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["REMEMBERED", "ShadowAsk", "differing"]

REMEMBERED = 16  # of a peer, from one barrier to the next: the newest ones
_CLOSE = 1e-4  # relative: arithmetic differs in the last bits between processors


@dataclass(frozen=True)
class ShadowAsk:
    """A rule in the shadow that fired after ``step``, and the number that it asks for (NaN: none)."""

    rule: str
    step: int
    value: float


def differing(asked: Mapping[int, Sequence[ShadowAsk]]) -> Mapping[int, str]:
    """By rank, in words, what not all peers would have asked for since they met last; empty where all are alike.

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
        return {}
    return {rank: "; ".join(map(_in_words, found)) for rank, found in lone.items()}


def _has(others: Sequence[ShadowAsk], one: ShadowAsk) -> bool:
    return any((other.rule, other.step) == (one.rule, one.step) and _same(other.value, one.value) for other in others)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE) or (math.isnan(one) and math.isnan(other))


def _in_words(one: ShadowAsk) -> str:
    what = "fires" if math.isnan(one.value) else f"asks for {one.value:g}"
    return f"{one.rule} {what} at step {one.step}"
