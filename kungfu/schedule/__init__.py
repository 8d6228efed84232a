"""Cluster schedulers that use elasticity: traces, policies as pure functions, and one simulator for all of them.

Nothing here imports TensorFlow. Policies decide; the simulator performs. See ``docs/scheduling.md``.
"""

from kungfu.schedule.curves import LINEAR, Curve, hybrid_batch, hybrid_curve, read_throughputs
from kungfu.schedule.elan import elastic_backfill, elastic_fifo
from kungfu.schedule.engine import simulate
from kungfu.schedule.job import Job, inelastic, with_limits
from kungfu.schedule.outcome.ledger import Result
from kungfu.schedule.outcome.metrics import reduction, summary
from kungfu.schedule.performing import Pauses
from kungfu.schedule.rigid import conservative_backfill, easy_backfill, fifo, first_fit
from kungfu.schedule.state import Plan, Policy, State
from kungfu.schedule.tiresias import elastic_tiresias, tiresias
from kungfu.schedule.traces import FORMATS, SHAPES, Columns, generated, read_trace

__all__ = [
    "FORMATS",
    "LINEAR",
    "SHAPES",
    "Columns",
    "Curve",
    "Job",
    "Pauses",
    "Plan",
    "Policy",
    "Result",
    "State",
    "conservative_backfill",
    "easy_backfill",
    "elastic_backfill",
    "elastic_fifo",
    "elastic_tiresias",
    "fifo",
    "first_fit",
    "generated",
    "hybrid_batch",
    "hybrid_curve",
    "inelastic",
    "read_throughputs",
    "read_trace",
    "reduction",
    "simulate",
    "summary",
    "tiresias",
    "with_limits",
]
