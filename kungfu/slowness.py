"""The thresholds for slow peers, as fractions of the median peer's speed."""

from __future__ import annotations

__all__ = ["SLOW", "STRAGGLER"]

# A peer whose speed is below this fraction of the median is clearly slower than the others. If each step of a peer
# varies by 20 %, its average over about ten steps still varies by 5 %: a peer within 10 % of the median may be as
# fast as the others, and the order of such fractions is meaningless.
SLOW = 0.9

# A peer whose speed is below this fraction of the median is a straggler; the default threshold of
# ``monitor.stragglers``.
STRAGGLER = 0.8
