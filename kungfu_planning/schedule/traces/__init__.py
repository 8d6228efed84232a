"""Where jobs come from: files in the formats of published traces, tables of your own, or a seeded generator."""

from kungfu_planning.schedule.traces.generate import SHAPES, generated
from kungfu_planning.schedule.traces.read import FORMATS, BatchScaling, Columns, read_job_trace

__all__ = ["FORMATS", "SHAPES", "BatchScaling", "Columns", "generated", "read_job_trace"]
