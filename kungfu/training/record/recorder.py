"""The recorder: what every step offered to the policies, on this peer, told to the job's journal.

On the training thread it takes one row of numbers a step; its text is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kungfu.compiler import Plan
from kungfu.compiler.lower import Program
from kungfu.compiler.portable import plan_to_json
from kungfu.errors import InternalError
from kungfu.trace.lines import header_line, snapshot_line, step_line
from kungfu.training.graph.tape import Column, Tape

__all__ = ["SNAPSHOT_EVERY", "Recorder"]

SNAPSHOT_EVERY = 100  # steps: a snapshot reads every variable of every fold

Record = Callable[[str, Callable[[], Mapping[str, Any]]], None]


class Recorder:
    """Records this peer's share of the trace; see ``docs/trace.md``."""

    def __init__(self, record: Record, *, tape: Tape, program: Program, peer: int, policy: str = "") -> None:
        self._record, self._tape, self._program = record, tape, program
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
        self._record("trace", partial(_step, self._tape.columns, row))

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


def _step(columns: tuple[Column, ...], row: Any) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {
        "step": {},
        "local": {},
        "agreed": {},
        "targets": {},
        "fired": {},
        "watched": {},
    }
    for column, value in zip(columns, row.tolist(), strict=True):
        groups[column.group][column.name] = value if column.dtype == "float32" else _whole(value, column.dtype)
    local, agreed = (_known(groups[name]) for name in ("local", "agreed"))
    fired = {name: groups["targets"][name] for name, fires in groups["fired"].items() if fires}
    place = {"step": agreed.pop("step"), "view": groups["step"]["view"], "rank": local.pop("rank")}
    return step_line(place, local=local, agreed=agreed, fired=fired)


def _whole(value: float, dtype: str) -> int | bool:
    return bool(value) if dtype == "bool" else int(value)


def _known(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Without what no rule needed in this step: see ``Program.frontier``."""
    return {name: value for name, value in numbers.items() if value != float("-inf") or "(" not in name}
