"""Pauses that are refused; what they cost is seen in the simulator's tests."""

from __future__ import annotations

import pytest

from kungfu.errors import UsageError
from kungfu.schedule import Pauses


@pytest.mark.parametrize(
    "wrong",
    [{"out_s": -1.0}, {"in_s": float("nan")}, {"out_s": 1e300}, {"overhead": 1.0}, {"overhead": -0.1}],
)
def test_pauses_and_overheads_outside_their_ranges_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"pauses must be 0 to 1e\+09 s, the overhead 0 to 0\.99"):
        Pauses(**wrong)
