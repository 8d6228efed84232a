"""Compares the states of the peers at a rendezvous; a difference that is more than rounding raises an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kungfu.errors import InternalError, UsageError
from kungfu.event_log.events import RoundedEvent, RoundedVariable
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import converters
from kungfu.runtime.state.compare import ROUNDING, VariableGap, differing_variables

_MOST_NAMED = 3

_from_gap, _ = converters(VariableGap, pb.VariableGap)


def variables_to_reconcile(names: Sequence[str], reports: Mapping[int, pb.BarrierArrival], view: View) -> list[int]:
    """The indices of the variables that differ, if they may differ by rounding only; empty if no variable differs.

    Args:
        names: The names of the coordinator's variables.
        reports: The arrival of each rank, with the digests of its state.

    Raises:
        UsageError: A variable still differs in the second round of a barrier; the error names it.
        InternalError: A variable still differs between the peers of a view that begins.
    """
    digests = {rank: one.digests for rank, one in reports.items()}
    found = differing_variables(digests)
    # All hold the same state.
    if not found:
        return []
    countable = max(found) < min(len(one) for one in digests.values())
    # The first round: the difference may be rounding, if all peers have those variables.
    if countable and not any(one.round for one in reports.values()):
        return list(found)
    # The variables still differ in the second round, or not all peers have them: the difference is no rounding.
    index, rank = min(found), found[min(found)][0]
    name = names[index] if index < len(names) else f"variable {index}"
    said = f"{name} of rank {rank} is not that of rank {min(digests)}"
    gap = next((one for one in reports[rank].gaps if one.index == index), None)
    detail = _gap_text(gap) if gap is not None and gap.difference else ""
    text = f"the peers of view {view.version} do not hold the same state: {said}{detail}{_others(names, list(found))}"
    # The peers that begin a view have just made their states equal, and have not run any user code since.
    if reports[rank].begins_view:
        raise InternalError(text)
    raise UsageError(
        f"{text}; a callback or the program has changed it on one peer only, between two steps perhaps: change on all "
        "peers alike what they share, from a generator with the same seed for example"
    )


def rounding_event(names: Sequence[str], reports: Mapping[int, pb.BarrierArrival], view: View) -> RoundedEvent | None:
    """The event that names variables that differed by rounding and now have rank 0's values; ``None`` if none did."""
    widest: dict[int, pb.VariableGap] = {}
    for one in reports.values():
        for gap in one.gaps:
            if gap.index not in widest or _width(gap) > _width(widest[gap.index]):
                widest[gap.index] = gap
    # No second round was held, or only digests differed.
    if not widest:
        return None
    order = sorted(widest.values(), key=_width, reverse=True)
    shown = tuple(
        RoundedVariable(name=names[gap.index], difference=gap.difference, largest=gap.largest)
        for gap in order[:_MOST_NAMED]
    )
    ranks = tuple(sorted(rank for rank, one in reports.items() if one.gaps))
    return RoundedEvent(view=view.version, ranks=ranks, variables=len(widest), widest=shown)


def from_gaps(gaps: Sequence[VariableGap]) -> list[pb.VariableGap]:
    """The differences of variables as protobuf, without variables that turned out to be equal."""
    return [_from_gap(gap) for gap in gaps if gap.difference or not gap.is_rounding]


def turn_of(version: int, number: int) -> int:
    """The index of the part of the state that a barrier of a view compares."""
    return version + number


def _width(gap: pb.VariableGap) -> float:
    """The largest difference between two peers' values of a variable, relative to the largest value."""
    return float(gap.difference / gap.largest) if gap.largest else float(gap.difference > 0)


def _others(names: Sequence[str], differing: Sequence[int]) -> str:
    """The first differing variable of each part of the state, except the reported variable, as text."""
    by_part = {names[index].partition("/")[0]: names[index] for index in reversed(differing) if index < len(names)}
    first = names[differing[0]] if differing[0] < len(names) else ""
    others = [name for name in by_part.values() if name != first]
    return f"; {', '.join(sorted(others))} too" if others else ""


def _gap_text(gap: pb.VariableGap) -> str:
    return (
        f", by up to {gap.difference:.3g}, where the largest value is {gap.largest:.3g}: rounding is up to "
        f"{ROUNDING:g} of that"
    )
