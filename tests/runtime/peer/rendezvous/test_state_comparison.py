"""The comparison of the peers' states: which difference an error or an event names."""

from __future__ import annotations

import pytest

from kungfu.errors import UsageError
from kungfu.event_log.events import RoundedEvent, RoundedVariable
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.peer.rendezvous.state_comparison import rounding_event, variables_to_reconcile


@pytest.mark.parametrize(
    ("digests", "difference"),
    [
        ({0: [1, 5], 1: [1, 5], 2: [9, 5]}, "w of rank 2 is not that of rank 0"),
        ({1: [1, 5], 2: [9, 5]}, "w of rank 2 is not that of rank 1"),
        ({0: [1, 1], 1: [1, 2], 2: [2, 1]}, "w of rank 2 is not that of rank 0"),
        ({0: [1, 5], 1: [9, 5], 2: [9, 5]}, "w of rank 1 is not that of rank 0"),
        ({0: [1, 2], 1: [1]}, "b of rank 1 is not that of rank 0"),
        ({0: [1, 2], 1: [1, 2, 3]}, "variable 2 of rank 1 is not that of rank 0"),
    ],
)
def test_the_first_variable_that_differs_is_named_with_its_rank(digests: dict[int, list[int]], difference: str) -> None:
    reports = {rank: pb.BarrierArrival(digests=found, round=1) for rank, found in digests.items()}
    with pytest.raises(UsageError, match=f"of view 4 do not hold the same state: {difference}"):
        variables_to_reconcile(["w", "b"], reports, View(4, ()))


def test_the_variables_that_rounding_changed_most_for_their_size_are_named() -> None:
    def arrival(*gaps: tuple[int, float, float]) -> pb.BarrierArrival:
        return pb.BarrierArrival(
            gaps=[pb.VariableGap(index=at, difference=gap, largest=most) for at, gap, most in gaps]
        )

    names, view = ["kernel", "bias", "zero", "scale"], View(4, ())
    reports = {
        3: arrival((0, 2.0, 1024.0), (2, 0.0, 0.0)),
        1: arrival((0, 1.0, 1024.0), (1, 0.5, 16.0), (3, 0.25, 1024.0)),
        2: arrival((0, 1.5, 1024.0)),
        0: arrival(),
    }
    widest = (RoundedVariable("bias", 0.5, 16.0), RoundedVariable("kernel", 2.0, 1024.0))
    assert rounding_event(names, reports, view) == RoundedEvent(
        view=4, ranks=(1, 2, 3), variables=4, widest=(*widest, RoundedVariable("scale", 0.25, 1024.0))
    )
    assert rounding_event(names, {0: arrival(), 1: arrival()}, view) is None
