"""The recorder: what every step offered to the policies, on this peer, told to the job's journal.

On the training thread it takes one row of numbers a step; its text is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

from kungfu.compiler import Plan
from kungfu.compiler.lower import Program
from kungfu.compiler.portable import plan_to_json
from kungfu.errors import InternalError
from kungfu.trace.lines import header_line, snapshot_line, step_line
from kungfu.training.graph.tape import Column, Tape

__all__ = ["SNAPSHOT_EVERY", "Recorder"]

SNAPSHOT_EVERY = 100  # steps: a snapshot reads every variable of every fold

_KINDS: Mapping[str, Callable[[float], Any]] = {"float32": float, "int64": int, "bool": bool}
_OF_THE_PLACE, _UNKNOWN = ("step", "rank"), float("-inf")

Record = Callable[[str, Callable[[], Mapping[str, Any]]], None]


class Recorder:
    """Records this peer's share of the trace; see ``docs/trace.md``."""

    def __init__(self, record: Record, *, tape: Tape, program: Program, peer: int, policy: str = "") -> None:
        self._record, self._layout, self._program = record, _Layout(tape.columns), program
        self._peer, self._policy = peer, policy
        self._view = 0
        self._rank: int | None = None

    def entered(self, *, version: int, rank: int | None, after: int) -> None:
        """A view is in force for this peer, behind step ``after``: the folds are what its first step begins with.

        In the view that it is in already, this is the end of a step like any other.
        """
        if version == self._view:
            self.settled(after=after)
            return
        first, self._view, self._rank = self._view == 0 and version == 1, version, rank
        if rank is None:
            return
        if first and rank == 0:
            self._record("trace", partial(_header, self._program.plan, self._policy))
        self._snapshot({"after": after, "view": version, "rank": rank, "peer": self._peer})

    def stepped(self, row: Any) -> None:
        """A step is done; ``row`` is its tape."""
        self._record("trace", partial(self._layout.line, row))

    def settled(self, *, after: int) -> None:
        """A step is over, in the same view: time for a snapshot, perhaps."""
        if after % SNAPSHOT_EVERY == 0 and self._rank is not None:
            self._snapshot({"after": after, "view": self._view, "rank": self._rank, "peer": self._peer})

    def _snapshot(self, place: Mapping[str, int]) -> None:
        told = [one for one in self._program.variables if place["rank"] == 0 or one.placement == "local"]
        held = {one.name: one.variable.numpy() for one in told}
        self._record("trace", partial(_snapshot, place, held))


def _header(plan: Plan, policy: str) -> dict[str, Any]:
    try:
        content = plan_to_json(plan)
    except InternalError:  # a run must not end over its record; a replay says that the plan is missing
        content = None
    return header_line(content, policy=policy, every=SNAPSHOT_EVERY)


def _snapshot(place: Mapping[str, int], held: Mapping[str, Any]) -> dict[str, Any]:
    return snapshot_line(place, folds={name: value.tolist() for name, value in held.items()})


@final
class _Layout:
    """Which numbers of a row go where in a line, worked out once for all steps."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._places = {(one.group, one.name): index for index, one in enumerate(columns)}
        rules = [name for group, name in self._places if group == "fired"]
        self._rules = [(name, self._places["fired", name], self._places["targets", name]) for name in rules]
        self._local, self._agreed = (
            [(one.name, index, _KINDS[one.dtype]) for index, one in enumerate(columns) if one.group == group]
            for group in ("local", "agreed")
        )

    def line(self, row: Any) -> dict[str, Any]:
        """The line of a step. What all peers agree on is told by rank 0 alone."""
        numbers, places = row.tolist(), self._places
        rank = int(numbers[places["local", "rank"]])
        place = {
            "step": int(numbers[places["agreed", "step"]]),
            "view": int(numbers[places["step", "view"]]),
            "rank": rank,
        }
        agreed = _known(self._agreed, numbers) if rank == 0 else {}
        fired = {name: numbers[target] for name, fires, target in self._rules if numbers[fires]}
        return step_line(place, local=_known(self._local, numbers), agreed=agreed, fired=fired)


def _known(columns: Sequence[tuple[str, int, Callable[[float], Any]]], numbers: Sequence[float]) -> dict[str, Any]:
    """Without what says where the step is, and what no rule needed in it: see ``Program.frontier``."""
    return {
        name: kind(numbers[index])
        for name, index, kind in columns
        if name not in _OF_THE_PLACE and (numbers[index] != _UNKNOWN or "(" not in name)
    }
