"""Where jobs come from: files in the formats of published traces, tables of your own, or a seeded generator."""

from kungfu.schedule.traces.generate import SHAPES, generated
from kungfu.schedule.traces.read import FORMATS, BatchScaling, Columns, read_job_trace

__all__ = ["FORMATS", "SHAPES", "BatchScaling", "Columns", "generated", "read_job_trace"]
