"""What somebody outside demands of a barrier, beside what its rules ask for."""

from __future__ import annotations

import pytest

from kungfu.runtime.deciding.decide import Leave, Wish
from kungfu.runtime.deciding.demand import Demand, DemandKind
from kungfu.training.requests import Requests, demanded

RULES = Requests(Wish(3, "local_batch_size", "grow", 7), checkpoints=("a rule",))


@pytest.mark.parametrize(
    ("kind", "leave"),
    [
        ("resize", None),
        ("leave", Leave((1,), "now")),
        ("notice", Leave((1,), "noticed")),
        ("replace", Leave((1,), "replaced")),
    ],
)
def test_a_demand_for_other_peers_stands_beside_the_wish_of_the_rules(kind: DemandKind, leave: Leave | None) -> None:
    found = demanded(RULES, Demand(kind, "kungfu says so", size=2, peers=(1,)), step=9)
    assert found.outside == Wish(2, "global_batch_size", "kungfu says so", 9, leave=leave)
    assert (found.wish, found.settings, found.checkpoints) == (RULES.wish, (), ("a rule",))


def test_the_batch_that_stays_is_the_one_that_was_asked_for() -> None:
    found = demanded(Requests(), Demand("resize", "kungfu resize 2", size=2, keep="local_batch_size"), step=9)
    assert found.outside is not None
    assert found.outside.keep == "local_batch_size"


def test_a_checkpoint_and_the_end_of_training_change_no_peers() -> None:
    found = demanded(RULES, Demand("checkpoint", "kungfu checkpoint"), step=9)
    assert (found.outside, found.checkpoints) == (None, ("a rule", "kungfu checkpoint"))
    (setting,) = demanded(RULES, Demand("stop", "kungfu stop"), step=9).settings
    assert (setting.kind, setting.rule, setting.step) == ("stop", "kungfu stop", 9)
