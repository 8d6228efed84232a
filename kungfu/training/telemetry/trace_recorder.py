"""Records the inputs of policies in every step on this peer, for the job's journal.

The training thread only reads one row of numbers per step; another thread formats the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, final

from kungfu.compiler import CompiledPolicies
from kungfu.compiler.lower import Program
from kungfu.compiler.serialize import plan_to_json
from kungfu.errors import InternalError
from kungfu.runtime.api import DeferredEntry
from kungfu.trace.lines import CONVERSIONS, header_line, json_literal, snapshot_line, step_format
from kungfu.training.graph.step_record import Column, StepRecord

SNAPSHOT_EVERY = 100  # steps; a snapshot reads every variable of every fold

_OF_THE_PLACE, _UNKNOWN = ("step", "view", "rank"), float("-inf")
_KINDS: Mapping[str, Callable[[float], int]] = {"int64": int, "bool": bool}
_MOST_FORMS = 256

Record = Callable[[str, DeferredEntry], None]


class TraceRecorder:
    """Records this peer's share of the trace; see ``docs/trace.md``."""

    def __init__(
        self,
        record: Record,
        *,
        step_record: StepRecord,
        program: Program,
        peer: int,
        policies: Sequence[str] = (),
        phase: int = 1,
    ) -> None:
        self._record, self._step_record, self._program = record, step_record, program
        self._layout = _Layout(step_record.columns)
        self._peer, self._policies, self._phase = peer, policies, phase
        self._view = 0
        self._rank: int | None = None

    def entered(self, *, version: int, rank: int | None, after: int) -> None:
        """Begins a view after step ``after``, with a snapshot of the policies' memories before the first step.

        If the view has not changed, the call only does the work of ``step_ended``.
        """
        if version == self._view:  # the barrier changed settings, or nothing
            self.step_ended(after=after)
            return
        first, self._view, self._rank = self._view == 0, version, rank
        if rank is None:  # a decision removed this peer: it has no further step
            return
        if first and rank == 0:  # only for the founders, since joiners enter after rank 0
            self._record("trace", partial(_header, self._program.plan, self._policies, self._phase, after))
        self._snapshot(after, rank)

    def stepped(self, packed: Sequence[float]) -> None:
        """Records a finished step; ``packed`` is its packed record."""
        self._record("trace", partial(self.line, packed))

    def line(self, packed: Sequence[float]) -> str:
        """The line of a step; may be called in another thread."""
        return self._layout.line(self._step_record.row(packed))

    def step_ended(self, *, after: int) -> None:
        """Handles the end of a step in an unchanged view: takes a snapshot of the policies' memories, if one is due."""
        if after % SNAPSHOT_EVERY == 0 and self._rank is not None:
            self._snapshot(after, self._rank)

    def _snapshot(self, after: int, rank: int) -> None:
        here = {"after": after, "view": self._view, "rank": rank, "peer": self._peer}
        recorded = [one for one in self._program.variables if rank == 0 or one.placement == "local"]
        held = {one.name: one.variable.numpy() for one in recorded}
        self._record("trace", partial(_snapshot, here, held))


def _header(plan: CompiledPolicies, policies: Sequence[str], phase: int, after: int) -> dict[str, Any]:
    try:
        content = plan_to_json(plan)
    except InternalError:  # a run must not fail because of its record; a replay reports the missing plan
        content = None
    return header_line(content, policies=policies, every=SNAPSHOT_EVERY, phase=phase, first=after + 1)


def _snapshot(here: Mapping[str, int], held: Mapping[str, Any]) -> dict[str, Any]:
    return snapshot_line(here, folds={name: value.tolist() for name, value in held.items()})


class _Form(NamedTuple):
    """A template of a line: ``text % values(numbers)``."""

    text: str
    values: Callable[[Sequence[float]], Any]


@final
class _Layout:
    """Formats rows of numbers as lines, by cached templates.

    Rows with zeros and non-finite numbers in the same columns, and with the same fired rules, share a template. Every
    step needs a line, and a cached template halves the time to format the line.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        places = {(one.group, one.name): index for index, one in enumerate(columns)}
        self._place = [places["agreed", "step"], places["agreed", "view"], places["local", "rank"]]
        self._local, self._agreed = (
            [i for i, one in enumerate(columns) if one.group == group and one.name not in _OF_THE_PLACE]
            for group in ("local", "agreed")
        )
        rules = [name for group, name in places if group == "fired"]
        self._rules = [(name, places["fired", name], places["targets", name]) for name in rules]
        values = [*self._local, *self._agreed]
        self._numbers = [i for i in values if columns[i].dtype != "bool"]
        self._numbers += [target for _, _, target in self._rules]
        self._flags = [i for i in values if columns[i].dtype == "bool"] + [fires for _, fires, _ in self._rules]
        self._forms: dict[Any, _Form] = {}

    def line(self, numbers: Sequence[float]) -> str:
        """The line of a step; values that are equal on all peers are only in the line of rank 0."""
        leads = numbers[self._place[-1]] == 0
        odd = [(i, str(one)) for i in self._numbers if not (one := numbers[i]) or one - one != 0.0]  # ±0, ±inf, NaN
        key = (leads, tuple(odd), tuple([numbers[i] for i in self._flags]))
        form = self._forms.get(key)
        if form is None:  # the first row with these zeros, non-finite numbers and rules
            if len(self._forms) == _MOST_FORMS:
                self._forms.clear()
            form = self._forms[key] = self._form(numbers, leads=leads)
        return form.text % form.values(numbers)

    def _form(self, numbers: Sequence[float], *, leads: bool) -> _Form:
        put_in = [*self._place]  # in the order of the text

        def text(index: int) -> str:
            value, dtype = numbers[index], self._columns[index].dtype
            if dtype != "float32" and math.isfinite(value):
                value = _KINDS[dtype](value)
            if dtype == "bool" or not value or not math.isfinite(value):
                return json_literal(value)
            put_in.append(index)
            return CONVERSIONS[dtype]

        def texts(indices: Sequence[int]) -> dict[str, str]:
            return {self._columns[i].name: text(i) for i in indices if not self._is_unknown(i, numbers[i])}

        whole = step_format(
            {self._columns[i].name: CONVERSIONS["int64"] for i in self._place},
            local=texts(self._local),
            agreed=texts(self._agreed) if leads else None,
            fired={name: text(target) for name, fires, target in self._rules if leads and numbers[fires]},
        )
        return _Form(whole, itemgetter(*put_in))

    def _is_unknown(self, index: int, value: float) -> bool:
        """True if the number in this column is missing: no rule needed it. See ``Program.gradient_reductions``."""
        return value == _UNKNOWN and "(" in self._columns[index].name
