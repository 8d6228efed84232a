"""Cluster schedulers that use elasticity: traces, policies as pure functions, and a common simulator.

The package does not import TensorFlow. Policies decide; the simulator performs. See ``docs/scheduling.md``.
"""

from kungfu_planning.schedule.cluster_policies.elan import elastic_backfill, elastic_fifo
from kungfu_planning.schedule.cluster_policies.rigid import conservative_backfill, easy_backfill, fifo, first_fit
from kungfu_planning.schedule.cluster_policies.tiresias import elastic_tiresias, tiresias
from kungfu_planning.schedule.curve import LINEAR, Curve
from kungfu_planning.schedule.engine import Pauses, simulate
from kungfu_planning.schedule.job import ClusterJob, inelastic, with_limits
from kungfu_planning.schedule.measured_curves import hybrid_batch, hybrid_curve, read_throughputs
from kungfu_planning.schedule.outcome import SimulationResult, reduction, summary
from kungfu_planning.schedule.state import ClusterPolicy, SchedulePlan, State
from kungfu_planning.schedule.traces.generate import SHAPES, generated
from kungfu_planning.schedule.traces.read import FORMATS, Columns, read_job_trace

__all__ = [
    "FORMATS",
    "LINEAR",
    "SHAPES",
    "ClusterJob",
    "ClusterPolicy",
    "Columns",
    "Curve",
    "Pauses",
    "SchedulePlan",
    "SimulationResult",
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
    "read_job_trace",
    "read_throughputs",
    "reduction",
    "simulate",
    "summary",
    "tiresias",
    "with_limits",
]
