"""Reads and replays the recorded inputs and decisions of a run's policies, step by step."""

from kungfu.trace.reader import RecordedStep, Snapshot, Trace, parse_trace, read_plan, read_trace
from kungfu.trace.replaying import Replayed, replay

__all__ = ["RecordedStep", "Replayed", "Snapshot", "Trace", "parse_trace", "read_plan", "read_trace", "replay"]
