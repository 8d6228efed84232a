"""The comparison of shadow rules' requests between the peers of a barrier."""

from __future__ import annotations

import math

from kungfu.runtime.core.shadow import ShadowAsk, differing


def test_a_shadow_hook_that_fires_on_one_peer_only_is_named_and_one_on_all_is_not() -> None:
    """A hook requests no number, so its request is NaN, which no comparison of numbers finds equal to another NaN."""
    early, late = ShadowAsk("shadow(mine)", 4, math.nan), ShadowAsk("shadow(mine)", 8, math.nan)
    assert differing({0: [early], 1: [early], 2: [early]}) == {}
    assert differing({0: [early], 1: [early, late], 2: [early]}) == {0: "", 1: "shadow(mine) fires at step 8", 2: ""}
