"""What the record of a run says, told to a person."""

from kungfu.cli.story.gaps import gaps, is_gap
from kungfu.cli.story.record import Record, read_events, read_metrics
from kungfu.cli.story.sentence import sentence
from kungfu.cli.story.spans import span_trees
from kungfu.cli.story.table import decisions_table
from kungfu.cli.story.tale import Paragraph, paces, tell

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
