"""Showing what was planned: as a table, as JSON, as a picture."""

from kungfu.tune.report.comparison import Comparison, compare
from kungfu.tune.report.document import as_document
from kungfu.tune.report.figure import draw, save
from kungfu.tune.report.tables import as_tables

__all__ = ["Comparison", "as_document", "as_tables", "compare", "draw", "save"]
