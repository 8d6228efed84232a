"""Arguments that make no sense are refused in the words of the policy, with its name and the user's line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import kungfu as kf
from kungfu.compiler import compile_policies
from kungfu.errors import PolicyError

Case = tuple[str, dict[str, Any], str]
RIGHT = {
    "autoscale": {"max_peers": 8},
    "gns_batch": {"max_peers": 4},
    "utility": {"worth": kf.worth.linear(2000, zero_at_s=4000), "samples": 10, "price_per_hour": 1, "max_peers": 4},
}
PEERS = "min_peers=.*takes 1 <= min_peers <= max_peers"
IN_A_ROW = {"criterion": "slowest_in_a_row"}
NO_TABLES = ({}, {64: 0}, {64.5: 3}, {True: 3}, [64], {64: None}, {64: math.nan}, None)
NO_SIZES = ({-1: 2}, {1: 0}, {1.5: 2}, {1: 2.0}, {True: 2}, {1: "2"}, {1: None})
NO_WORTHS: tuple[Any, ...] = (
    *map(kf.worth.points, ({}, {10: 1, 20: 2}, {10: 1, 20: None})),  # type: ignore[arg-type] # wrong
    kf.worth.steps({10: 1, 20: 2}),
    kf.worth.linear(-1, zero_at_s=10),
    3,
)


def wrong(policy: str, message: str, **values: Sequence[Any]) -> Iterator[Case]:
    """The policy with each of these values of its arguments, and the message of the refusal."""
    for name, several in values.items():
        yield from ((policy, {name: value}, message) for value in several)


CASES: list[Case] = [
    *wrong("autoscale", PEERS, max_peers=[0, 2.5, True], min_peers=[0, 9]),
    *wrong("autoscale", "takes a finite number", efficiency=[math.nan, math.inf, True]),
    *wrong("autoscale", "takes|stays|must be", unit=[0], every=[0], look_ahead=[-1], margin=[0, math.nan]),
    *wrong("autoscale", "takes|stays|must be", max_global_batch=[0]),
    ("autoscale", {"max_global_batch": 64, "keep": "global_batch_size"}, "takes|stays|must be"),
    *wrong("gns_batch", PEERS, max_peers=[1, 2.5], min_peers=[0, 5]),
    ("gns_batch", {"max_peers": True, "min_peers": 1}, PEERS),
    *wrong("gns_batch", "every 0 steps|0", every=[0], sample_every=[0]),
    *wrong("gns_batch", "decay=(0|nan)", decay=[0, math.nan]),
    *wrong("hybrid_scaling", r"takes \{global batch: optimal number of peers\}", optimal_peers=NO_TABLES),
    *wrong("linear_scaling", "over_steps", over_steps=[-1, math.nan, math.inf]),
    *wrong("replace_stragglers", "every", every=[0]),
    *wrong("replace_stragglers", r"threshold=(1\.5|nan)", threshold=[1.5, math.nan]),
    ("replace_stragglers", {**IN_A_ROW, "threshold": -1}, "threshold=-1"),
    *wrong("replace_stragglers", "alpha=(0|nan)", alpha=[0, math.nan]),
    *wrong("replace_stragglers", "criterion='median'.*'average' or 'slowest_in_a_row'", criterion=["median"]),
    *wrong("replace_stragglers", r"times=(0|2\.5|True)", times=[0, 2.5, True]),
    *wrong("replace_stragglers", "times=5.: the criterion 'average' does not count .*='slowest_in_a_row'", times=[5]),
    *wrong("schedule", r"takes at least one step: size, e.g. schedule\(\{100: 4", sizes=[{}, [(1, 2)], None]),
    *wrong("schedule", "is no step and size; write whole numbers, step >= 0 and size >= 1", sizes=NO_SIZES),
    *wrong("stop_on_nan", r"stop_on_nan\(\w+=", steps=[0, 1.5, True], watch=["weights"]),
    *wrong("utility", "takes|rises", worth=NO_WORTHS, samples=[0, 1.5], unit=[0], max_peers=[0]),
    *wrong("utility", "takes|rises", price_per_hour=[-1, math.nan, math.inf]),
]


@pytest.mark.parametrize(("policy", "arguments", "message"), CASES)
def test_an_argument_out_of_range_is_refused(policy: str, arguments: dict[str, Any], message: str) -> None:
    made = getattr(kf.policies, policy)(**{**RIGHT.get(policy, {}), **arguments})
    with pytest.raises(PolicyError) as refused:
        compile_policies([made])
    assert re.match(rf"policy '{policy}' \(.*test_refusals\.py:\d+\): .*({message})", str(refused.value))
    assert refused.value.policy == policy
    assert "test_refusals.py" in refused.value.origin
