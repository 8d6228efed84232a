"""Checks in the record that the job trained on each sample exactly once while faults were injected.

For each step, rank 0 records the loader's position (the samples done before the step) and the samples of all peers in
the step. If a step begins where the previous one ended, no sample was lost or used twice; epochs end exactly at their
last sample. Steps that were lost with a killed rank 0 are covered by the position of the next recorded step.
Without a trace, the samples of whole epochs are counted from the metrics.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kungfu.cli.report.reader import rows_in_order
from kungfu.event_log.values import counted, figure, finite_number

_BEFORE_BYTES = 1 << 16


@dataclass(frozen=True)
class CountedStep:
    """A step of the whole job, as rank 0 recorded it.

    Args:
        done: Samples done before the step.
        samples: Samples of the step, of all peers.
        epoch_samples: Samples of an epoch; 0 if unknown.
    """

    step: int
    done: int
    samples: int
    epoch_samples: int = 0


@dataclass(frozen=True)
class SampleCheck:
    """The result of the check of samples against the record.

    Args:
        problems: Descriptions of the steps at which samples were lost or used twice.
        notes: The questions that the record cannot answer.
    """

    samples: int
    found: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def trace_offset(folder: Path) -> int:
    """A byte offset a few steps before the end of a run's trace, so that a check also covers an immediate fault."""
    try:
        return max(0, (folder / "trace.jsonl").stat().st_size - _BEFORE_BYTES)
    # The run has no trace, or has not begun to write it.
    except OSError:
        return 0


def read_steps(folder: Path, *, offset: int) -> list[CountedStep]:
    """The steps in a run's trace from byte ``offset`` on, in order; for a repeated step, its last version."""
    by_step: dict[int, tuple[int, CountedStep]] = {}
    try:
        with (folder / "trace.jsonl").open("rb") as file:
            file.seek(offset)
            for line in file:
                if (found := _step(line)) is not None:
                    view, one = found
                    if one.step not in by_step or view >= by_step[one.step][0]:
                        by_step[one.step] = view, one
    except OSError:
        return []
    return [by_step[step][1] for step in sorted(by_step)]


def _step(line: bytes) -> tuple[int, CountedStep] | None:
    """The view and the step in a line of rank 0; ``None`` for any other line, and for a truncated line."""
    if b'"agreed"' not in line:
        return None
    try:
        fields = json.loads(line)
        agreed = fields["agreed"]
        one = CountedStep(
            int(fields["step"]), int(agreed["samples_done"]), int(agreed["total_samples"]),
            int(agreed.get("epoch_samples", 0)),
        )  # fmt: skip
        return int(fields["view"]), one
    except (ValueError, KeyError, TypeError):
        return None


def check_steps(steps: Sequence[CountedStep]) -> SampleCheck:
    """Checks that each step began at the end of the previous one, and that no step went beyond the end of its epoch.

    >>> check_steps([CountedStep(1, 0, 12, 20), CountedStep(2, 12, 8, 20)]).found
    '20 samples of steps 1 to 2, each step from where the one before it ended'
    >>> check_steps([CountedStep(1, 0, 12), CountedStep(2, 10, 12)]).problems
    ('step 2 began after 10 samples, and the one before it ended after 12: 2 samples were used twice',)
    """
    problems, notes = list[str](), list[str]()
    for before, after in itertools.pairwise(steps):
        end, missing = before.done + before.samples, after.step - before.step - 1
        beyond = after.done - end
        # Steps were lost with rank 0; the position after them gives their number of samples.
        if missing and beyond > 0:
            notes.append(f"{_named(before.step + 1, after.step - 1)} not recorded, and had {counted(beyond, 'sample')}")
        elif beyond:
            wrong = "were left out" if beyond > 0 else "were used twice"
            problems.append(
                f"step {figure(after.step)} began after {figure(after.done)} samples, and the one before it ended "
                f"after {figure(end)}: {counted(abs(beyond), 'sample')} {wrong}"
            )
    problems += [
        f"step {figure(one.step)} went beyond the end of its epoch of {counted(one.epoch_samples, 'sample')}"
        for one in steps if one.epoch_samples and one.done % one.epoch_samples + one.samples > one.epoch_samples
    ]  # fmt: skip
    if not steps:
        return SampleCheck(0, "no step was recorded", notes=("the record does not show the samples",))
    total = steps[-1].done + steps[-1].samples - steps[0].done
    found = f"{counted(total, 'sample')} of steps {figure(steps[0].step)} to {figure(steps[-1].step)}"
    if not problems:
        found += ", each step from where the one before it ended"
    return SampleCheck(total, found, tuple(problems), tuple(notes))


def check_epochs(rows: Iterable[Mapping[str, Any]], *, since: int) -> SampleCheck:
    """Checks that every whole epoch had the same number of samples, from the metrics alone.

    Args:
        since: An epoch with a step after this step is checked; earlier epochs define the expected number of samples.

    >>> rows = [{"step": 2 * epoch + one, "epoch": epoch, "batch": 6} for epoch in range(4) for one in (1, 2)]
    >>> check_epochs(rows, since=3).found
    '2 whole epochs of 12 samples each'
    """
    whole = [*_whole_epochs(rows)]
    checked = [(number, samples) for number, last, samples in whole if last > since]
    totals = [samples for _, _, samples in whole]
    if not checked:
        return SampleCheck(0, "no epoch was over", notes=("no whole epoch is recorded: its samples were not counted",))
    usual = max(set(totals), key=totals.count)
    problems = [
        f"epoch {epoch} had {counted(total, 'sample')}, where others have {figure(usual)}"
        for epoch, total in checked if total != usual
    ]  # fmt: skip
    found = f"{counted(len(checked), 'whole epoch')} of {counted(usual, 'sample')} each"
    return SampleCheck(sum(total for _, total in checked), found if not problems else "epochs differ", tuple(problems))


def _whole_epochs(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, int]]:
    """Yields the number, the last step and the samples of each epoch whose steps are all recorded, in order."""
    epochs = []
    numbered = itertools.groupby(rows_in_order(rows), key=lambda one: int(finite_number(one[1].get("epoch")) or 0))
    for number, those in numbered:
        known = [(int(step), int(finite_number(row.get("batch")) or 0)) for step, row in those]
        epochs.append((number, known[0][0], known[-1][0], len(known), sum(batch for _, batch in known)))
    # The first or last epoch of a fit may have begun before the record, continue after it, or end early.
    for before, (number, first, last, count, samples), after in zip(epochs, epochs[1:], epochs[2:], strict=False):
        is_bordered = before[2] == first - 1 and after[1] == last + 1 and before[0] < number < after[0]
        if is_bordered and count == last - first + 1:
            yield number, last, samples


def _named(first: int, last: int) -> str:
    return f"step {figure(first)} is" if first == last else f"steps {figure(first)} to {figure(last)} are"
