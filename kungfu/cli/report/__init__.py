"""The record of a run, read and reported to a person."""

from kungfu.cli.report.missing_steps import missing_steps
from kungfu.cli.report.narrative import Paragraph, narrative, paces
from kungfu.cli.report.one_line import one_line
from kungfu.cli.report.reader import EventRecord, MetricsRecord, read_events, read_metrics
from kungfu.cli.report.tables import decisions_table, span_trees

__all__ = [
    "EventRecord",
    "MetricsRecord",
    "Paragraph",
    "decisions_table",
    "missing_steps",
    "narrative",
    "one_line",
    "paces",
    "read_events",
    "read_metrics",
    "span_trees",
]
