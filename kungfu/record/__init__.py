"""The record of a run: what every step offered to its policies, read back and replayed."""

from kungfu.record.reader import RecordedStep, Snapshot, Trace, parse_trace, read_plan, read_trace
from kungfu.record.replaying import Replayed, replay

__all__ = ["RecordedStep", "Replayed", "Snapshot", "Trace", "parse_trace", "read_plan", "read_trace", "replay"]
