"""Planning a hyperparameter search: the GPUs of each stage, their time and cost, and the placement of trials.

The package only decides, in plain Python and NumPy: it does not start instances or move trials.
"""

from kungfu_planning.tune.baselines import Search, best_naive, best_static, fastest
from kungfu_planning.tune.cloud import Cloud, Dataset, Delays, Instance
from kungfu_planning.tune.estimation import Estimate, estimate
from kungfu_planning.tune.experiment import Experiment, Stage, hyperband, successive_halving
from kungfu_planning.tune.latency import Latency, ScalingCurve, amdahl, scaling
from kungfu_planning.tune.placement import Nodes, Shrunk, Slot, TrialPlacement, moves, place, shrink, unplaced
from kungfu_planning.tune.planner import plan_deadlines, plan_elastic
from kungfu_planning.tune.simulator import Simulator
from kungfu_planning.tune.spec.tuning_spec import TuningSpec, parse_spec, read_spec, tuning_schema
from kungfu_planning.units import duration_s

__all__ = [
    "Cloud",
    "Dataset",
    "Delays",
    "Estimate",
    "Experiment",
    "Instance",
    "Latency",
    "Nodes",
    "ScalingCurve",
    "Search",
    "Shrunk",
    "Simulator",
    "Slot",
    "Stage",
    "TrialPlacement",
    "TuningSpec",
    "amdahl",
    "best_naive",
    "best_static",
    "duration_s",
    "estimate",
    "fastest",
    "hyperband",
    "moves",
    "parse_spec",
    "place",
    "plan_deadlines",
    "plan_elastic",
    "read_spec",
    "scaling",
    "shrink",
    "successive_halving",
    "tuning_schema",
    "unplaced",
]
