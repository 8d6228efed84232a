"""Shadow rules are evaluated but not carried out; the peers compare the rules' requests at each barrier.

If peers disagree on an active rule, the next barrier detects this. The requests of a shadow rule are recorded by
rank 0 only, so without the comparison a disagreement would surface only when the rule is activated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REMEMBERED = 16  # the number of a peer's newest requests that are kept between two barriers
_CLOSE = 1e-4  # relative tolerance: arithmetic differs in the last bits between processors


@dataclass(frozen=True)
class ShadowAsk:
    """The request of a shadow rule that fired after ``step``; ``value`` is the requested number, NaN for none."""

    rule: str
    step: int
    value: float


def differing(asked: Mapping[int, Sequence[ShadowAsk]]) -> Mapping[int, str]:
    """Describes, by rank, each request that only some peers made since the last barrier; empty if all peers agree.

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
        # All peers agree.
        return {}
    return {rank: "; ".join(map(_in_words, found)) for rank, found in lone.items()}


def _has(others: Sequence[ShadowAsk], one: ShadowAsk) -> bool:
    return any((other.rule, other.step) == (one.rule, one.step) and _same(other.value, one.value) for other in others)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE) or (math.isnan(one) and math.isnan(other))


def _in_words(one: ShadowAsk) -> str:
    what = "fires" if math.isnan(one.value) else f"asks for {one.value:g}"
    return f"{one.rule} {what} at step {one.step}"
