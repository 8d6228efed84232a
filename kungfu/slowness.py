"""The thresholds of slow peers, as fractions of the median peer's speed."""

from __future__ import annotations

__all__ = ["SLOW", "STRAGGLER"]

# A peer whose speed is below this fraction of the median's is clearly slower than the others. Where each step of a peer
# varies by 20 %, its average over some ten steps still varies by 5 %: whoever is within 10 % of the median may be as
# fast as the others, and the order of such fractions says nothing.
SLOW = 0.9

# A peer whose speed is below this fraction of the median's straggles; the threshold of ``monitor.stragglers`` unless a
# policy says another.
STRAGGLER = 0.8
