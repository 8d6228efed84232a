"""A comparison as tables, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from kungfu.tune.report.comparison import Comparison
from kungfu.tune.report.timeline import stages_held
from kungfu.tune.simulate import Estimate
from kungfu.tune.spec.units import as_clock

__all__ = ["as_tables"]


def as_tables(found: Sequence[Comparison]) -> Iterator[Table]:
    """The stages of each planned experiment, then cost and time beside the baselines."""
    for index, each in enumerate(found):
        title = "Plan" if len(found) == 1 else f"Plan of bracket {index + 1} of {len(found)}"
        yield _stages(each, title=title)
    yield _beside(found)


def _stages(found: Comparison, *, title: str) -> Table:
    table = Table(title=title)
    for column in ("stage", "trials", "GPUs a trial", "GPUs", "instances", "from", "to"):
        table.add_column(column, justify="right")
    for index, held in enumerate(stages_held(found.simulator, plan=found.planned.gpus)):
        sizes = (index, held.trials, held.gpus_per_trial, held.gpus, held.instances)
        table.add_row(*map(str, sizes), as_clock(held.start_s), as_clock(held.end_s))
    return table


def _beside(found: Sequence[Comparison]) -> Table:
    table = Table(title=f"Within {as_clock(found[0].deadline_s)}")
    for column in ("", "time", "cost", "of static"):
        table.add_column(column, justify="right")
    statics = [each.static for each in found]
    static = _dollars(statics)
    rows: dict[str, Sequence[Estimate | None]]
    rows = {"planned": [each.planned for each in found], "static": statics, "naive elastic": [e.naive for e in found]}
    for name, estimates in rows.items():
        table.add_row(name, *_cells(estimates, static=static))
    return table


def _cells(estimates: Sequence[Estimate | None], *, static: float | None) -> tuple[str, str, str]:
    dollars = _dollars(estimates)
    if dollars is None:
        return "none meets it", "-", "-"
    seconds = max(each.seconds for each in estimates if each is not None)
    return as_clock(seconds), f"${dollars:.2f}", f"{dollars / static:.0%}" if static else "-"


def _dollars(estimates: Sequence[Estimate | None]) -> float | None:
    dollars = [each.dollars for each in estimates if each is not None]
    return sum(dollars) if len(dollars) == len(estimates) else None
