"""Reads a recorded trace: the steps with lines from all peers, and the snapshots between these steps.

Lines arrive from several peers in any order. Some lines are missing or cut short because a peer was killed, and a step
that a failure undid occurs in two views. The reader groups the lines by step and view, and keeps complete groups.
Incomplete groups and damaged lines result in a remark, not in an error.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kungfu.compiler import CompiledPolicies
from kungfu.compiler.passes.synchronising import STEPS_SINCE_AVERAGE
from kungfu.compiler.serialize import plan_from_json
from kungfu.errors import UsageError
from kungfu.trace.lines import TRACE_SCHEMA, LineFields, line_kind, number_from_json

# Rank 0 of the first view writes the header; other peers may have written some steps before the header.
_HEADER_WITHIN_LINES = 10_000


@dataclass(frozen=True)
class RecordedStep:
    """One step of the whole cluster.

    Attributes:
        local: Each peer's local sources by name, in rank order, including local gradient reductions under names like
            ``norm_squared(grads)``.
        agreed: The sources and gradient reductions that are equal on all peers, by name.
        fired: The rules that fired, each with the number that it requested.
    """

    step: int
    view: int
    local: tuple[LineFields, ...]
    agreed: LineFields
    fired: Mapping[str, float]

    @property
    def size(self) -> int:
        """The number of peers in the view."""
        return len(self.local)


@dataclass(frozen=True)
class Snapshot:
    """The states of the folds after a step.

    Attributes:
        after: The number of the step; 0 for a snapshot before the first step.
        view: The version of the view that runs the next step.
        folds: For each rank, the fields of its local folds by name; for rank 0, also those of all other folds.
    """

    after: int
    view: int
    peers: tuple[int, ...]
    folds: tuple[LineFields, ...]


@dataclass(frozen=True)
class Trace:
    """A recorded run.

    Attributes:
        plan: The plan that ran; None if the record does not contain the plan.
        policies: The policies named by ``kungfu-run --policy``.
    """

    steps: tuple[RecordedStep, ...]
    snapshots: tuple[Snapshot, ...] = ()
    plan: CompiledPolicies | None = None
    policies: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def averages_models(self) -> bool:
        """True if the run averages models, and therefore records only the steps that end with an average."""
        return any(STEPS_SINCE_AVERAGE.source in one.agreed for one in self.steps)


@dataclass
class _Gathered:
    """The lines read so far: for each step (or snapshot) and view, one line per rank."""

    header: LineFields | None = None
    steps: dict[tuple[int, int], dict[int, LineFields]] = field(default_factory=dict)
    snapshots: dict[tuple[int, int], dict[int, LineFields]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    ends: int | None = None  # the first step of the second phase, which may have another plan


def read_trace(folder: Path) -> Trace:
    """Reads the trace of the run in `folder`, which may also be the trace file itself.

    Raises:
        UsageError: The trace does not exist, cannot be read, has an unsupported schema, or contains no complete step.

    Cost:
        Memory of about five times the file's size.
    """
    path = folder if folder.suffix == ".jsonl" else folder / "trace.jsonl"
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return parse_trace(lines, name=str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{path}: there is no such file; give the folder of a run (its --logdir) that was recorded: kungfu-run "
            "writes a trace unless it is given --trace-limit 0"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from error


def read_plan(folder: Path) -> CompiledPolicies | None:
    """The plan of the finished or running job in `folder`; ``None`` if the folder has no trace with a plan.

    Only the beginning of the trace is read.

    Raises:
        UsageError: The trace has an unsupported schema.
    """
    gathered = _Gathered()
    try:
        with (folder / "trace.jsonl").open(encoding="utf-8", errors="replace") as lines:
            for number, text in enumerate(itertools.islice(lines, _HEADER_WITHIN_LINES), start=1):
                _gather(text, gathered, where=f"{folder}:{number}")
                if gathered.header is not None:
                    break
    except OSError:
        return None
    return _plan_in(gathered)


def _plan_in(gathered: _Gathered) -> CompiledPolicies | None:
    content = (gathered.header or {}).get("plan")
    return plan_from_json(content) if content is not None else None


def parse_trace(lines: Iterable[str], *, name: str = "trace.jsonl") -> Trace:
    """Parses the lines of a trace, as `read_trace` does; ``name`` is the name of the file in errors and remarks."""
    gathered = _Gathered()
    for number, text in enumerate(lines, start=1):
        if text.strip():
            _gather(text, gathered, where=f"{name}:{number}")
    if gathered.ends is not None:
        _end_with_phase(gathered, gathered.ends)
    steps = tuple(_whole_steps(gathered))
    if not steps:
        because = f" ({gathered.remarks[0]})" if gathered.remarks else ""
        raise UsageError(f"{name}: no step of it is whole, so there is nothing to replay{because}")
    policies = tuple(map(str, (gathered.header or {}).get("policies", ())))
    snapshots = tuple(_whole_snapshots(gathered, steps))
    return Trace(steps, snapshots, _plan_in(gathered), policies, tuple(gathered.remarks))


def _end_with_phase(gathered: _Gathered, ends: int) -> None:
    """Removes the steps and snapshots after the job's first phase, since later phases may have other policies."""
    gathered.steps = {key: lines for key, lines in gathered.steps.items() if key[0] < ends}
    gathered.snapshots = {key: lines for key, lines in gathered.snapshots.items() if key[0] < ends - 1}
    gathered.remarks.append(f"from step {ends} on the program trained again: this is the record of its first phase")


def _gather(text: str, gathered: _Gathered, *, where: str) -> None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    kind = line_kind(line) if isinstance(line, dict) else "unknown"
    # A line that a kill cut short, or a line from another file.
    if kind == "unknown":
        gathered.remarks.append(f"{where}: this line is none of a trace, or half-written; it was left out")
    elif kind == "step":
        gathered.steps.setdefault((line["step"], line["view"]), {})[line["rank"]] = line
    elif kind == "snapshot":
        gathered.snapshots.setdefault((line["after"], line["view"]), {})[line["rank"]] = line
    # The last line of a record that reached its limit.
    elif kind == "cut":
        gathered.remarks.append(f"{where}: the record ends here, at its limit of {line.get('limit_bytes')} bytes")
    # A header. The header of the first phase applies, and only the steps of that phase are kept.
    else:
        if line["trace"] != TRACE_SCHEMA:
            raise UsageError(
                f"{where}: a trace of schema {line['trace']!r}; this version of kungfu reads schema {TRACE_SCHEMA}"
            )
        if (first := line.get("first_step")) is None or gathered.header is None:
            gathered.header = gathered.header or line
        elif gathered.ends is None or first < gathered.ends:
            gathered.ends = first


def _whole_steps(gathered: _Gathered) -> Iterator[RecordedStep]:
    """Yields the complete steps; a step that a failure undid is yielded once, as recorded in the later view."""
    # Sorted by step and view, so that the mapping keeps the last view in which a step was done.
    latest = dict(sorted(_undone_left_out(gathered)))
    before: int | None = None
    lacking: list[tuple[int, str]] = []
    for step, view in latest.items():
        shares = gathered.steps[step, view]
        # A run that averages models records the last step of each window only.
        agreed = shares[0].get("agreed") if 0 in shares else None
        since = agreed.get(STEPS_SINCE_AVERAGE.source, 1) if isinstance(agreed, dict) else 1
        first = step - since if type(since) is int else step - 1
        if before is not None and first > before:
            gathered.remarks.append(f"steps {before + 1} to {first} are not in the record")
        before = step
        if missing := _missing(shares):
            lacking.append((step, missing))
            continue
        local = tuple({"rank": rank, **_read(shares[rank]["local"])} for rank in sorted(shares))
        fired = _read(shares[0].get("fired", {}))
        yield RecordedStep(step, view, local, {"step": step, **_read(shares[0]["agreed"])}, fired)
    gathered.remarks += _left_out(lacking)


def _undone_left_out(gathered: _Gathered) -> Iterator[tuple[int, int]]:
    """Yields the step and view of each step that counts: a view that begins after step n undoes later steps of older
    views, as many as were done since the checkpoint if the job was started again."""
    begins: dict[int, int] = {}
    for after, view in gathered.snapshots:
        begins[view] = min(after, begins.get(view, after))
    undone_after, last = dict[int, float](), math.inf  # by view: the steps that no newer view undoes
    for view in sorted({*begins, *(view for _, view in gathered.steps)}, reverse=True):
        undone_after[view] = last
        last = min(last, begins.get(view, last))
    return ((step, view) for step, view in gathered.steps if step <= undone_after[view])


def _left_out(lacking: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yields a remark on each series of steps that lack the same reports; a killed peer's last reports are lost."""
    for missing, those in itertools.groupby(lacking, key=lambda one: one[1]):
        for first, last in rows_without_gap(step for step, _ in those):
            if first == last:
                yield f"step {first} lacks the report of {missing}; it was left out"
            else:
                yield f"steps {first} to {last} lack the report of {missing}; they were left out"


def rows_without_gap(steps: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last step of each series of consecutive steps.

    >>> rows_without_gap([3, 4, 5, 9])
    [(3, 5), (9, 9)]
    """
    rows: list[tuple[int, int]] = []
    for step in steps:
        if rows and rows[-1][1] == step - 1:
            rows[-1] = rows[-1][0], step
        else:
            rows.append((step, step))
    return rows


def _missing(shares: Mapping[int, LineFields]) -> str:
    agreed = shares[0].get("agreed") if 0 in shares else None
    if not isinstance(agreed, dict) or type(agreed.get("size")) is not int:
        return "rank 0"
    ranks = [str(rank) for rank in range(agreed["size"]) if rank not in shares]
    return f"rank {' and '.join(ranks)}" if ranks else ""


def _whole_snapshots(gathered: _Gathered, steps: Iterable[RecordedStep]) -> Iterator[Snapshot]:
    """Yields the snapshots to which all peers of the view have contributed."""
    sizes = {one.view: one.size for one in steps}
    for (after, view), shares in sorted(gathered.snapshots.items()):
        if sorted(shares) == list(range(sizes.get(view, 0))):
            ranks = [shares[rank] for rank in sorted(shares)]
            yield Snapshot(
                after, view, tuple(one["peer"] for one in ranks), tuple(_read(one["folds"]) for one in ranks)
            )


def _read(fields: LineFields) -> dict[str, Any]:
    return {name: number_from_json(value) for name, value in fields.items()}
