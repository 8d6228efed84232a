"""What the record of a run says, told to a person."""

from kungfu.cli.report.gaps import gaps, is_gap
from kungfu.cli.report.record import Record, read_events, read_metrics
from kungfu.cli.report.sentence import sentence
from kungfu.cli.report.spans import span_trees
from kungfu.cli.report.table import decisions_table
from kungfu.cli.report.tale import Paragraph, paces, tell

__all__ = [
    "Paragraph",
    "Record",
    "decisions_table",
    "gaps",
    "is_gap",
    "paces",
    "read_events",
    "read_metrics",
    "sentence",
    "span_trees",
    "tell",
]
