"""Reads the record of a run and reports it to users."""

from kungfu.cli.report.metrics import read_rows, rows_between, rows_in_order
from kungfu.cli.report.missing_steps import missing_steps
from kungfu.cli.report.narrative import Paragraph, changes, narrative, paces, stood_still
from kungfu.cli.report.reader import EventRecord, read_events

__all__ = [
    "EventRecord",
    "Paragraph",
    "changes",
    "missing_steps",
    "narrative",
    "paces",
    "read_events",
    "read_rows",
    "rows_between",
    "rows_in_order",
    "stood_still",
]
