"""Hill climbing: from cluster size to cluster size, by the measurements at the sizes visited before."""

from __future__ import annotations

from collections.abc import Callable

from kungfu.errors import PolicyError
from kungfu.ops import clip, is_finite, maximum, minimum, where
from kungfu.signal import Signal, Source

__all__ = ["hill_climb"]

Advantage = Callable[[Signal], Signal]


def hill_climb(advantage: Advantage, *, unit: int, min_peers: int, max_peers: int) -> Signal:
    """The next size to try from the present one, so that the job ends at the last size that was worth its last peers.

    From a size k that was measured, with u = `unit`:

    - where k was not worth it over ``k - u``: down, to ``k - 2u`` if it was not measured, else to ``k - u``;
    - else up to ``k + u``, where that is worth it or was not measured;
    - else down to ``k - u``, where that was not measured;
    - else it stays at k.

    It always looks up first, and at the upper limit down. Sizes outside the job's limits, and the size that was refused
    last, are left out. Gives a float32 scalar, peers, agreed where the advantage is.

    Args:
        advantage: ``advantage(n)`` is the gain of ``n + unit`` peers over ``n``: worth it above 0, not worth it from 0
            down, NaN where one of both was not measured.
        unit: Peers added or taken away at once, at least 1.
        min_peers: The smallest size to try, peers.
        max_peers: The largest size to try, peers.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        No message, no state.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.1 and figure 3.
    """
    if isinstance(unit, bool) or not isinstance(unit, int) or unit < 1 or not 1 <= min_peers <= max_peers:
        raise PolicyError(
            f"unit={unit!r}, min_peers={min_peers!r}, max_peers={max_peers!r}: takes a whole number of peers from 1 on "
            "to add at once, and 1 <= min_peers <= max_peers"
        )
    size = Source("size")
    below, above = maximum(size - unit, 0), size + unit
    further = maximum(size - 2 * unit, 0)
    lower, here, upper = advantage(further), advantage(below), advantage(size)
    fewest, most = maximum(Source("min_size"), min_peers), minimum(Source("max_size"), max_peers)
    reachable = (above <= most) & (above != Source("refused_size"))
    # The present size was not worth its last peers: go down, past a size that was not measured yet.
    down = where(~is_finite(lower) & (further >= fewest), further, below)
    # Nothing is to be had above: measure the size below once, if it was not.
    look_down = where(~is_finite(here) & (below >= fewest), below, size)
    # The present size is worth its peers: climb while the next one is worth it, or was not measured.
    onwards = where(reachable & ((upper > 0) | ~is_finite(upper)), above, look_down)
    wanted = where(here <= 0, down, onwards)
    return clip(wanted * 1.0, fewest, most)
