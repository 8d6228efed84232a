"""Planning a hyperparameter search: how many GPUs each stage should hold, what that takes, and where trials go.

Deciding only, in plain Python and NumPy: nothing here starts an instance or moves a trial.
"""

from kungfu.tune.baselines import Search, best_naive, best_static, fastest
from kungfu.tune.cloud import Cloud, Dataset, Delays, Instance
from kungfu.tune.estimation import Estimate, estimate
from kungfu.tune.experiment import Experiment, Stage, hyperband, successive_halving
from kungfu.tune.latency import Latency, Scaling, amdahl, scaling
from kungfu.tune.placement import Nodes, Placement, Shrunk, Slot, moves, place, shrink, unplaced
from kungfu.tune.planner import plan_deadlines, plan_elastic
from kungfu.tune.simulator import Simulator
from kungfu.tune.spec import TuningSpec, duration_s, json_schema, parse_spec, read_spec

__all__ = [
    "Cloud",
    "Dataset",
    "Delays",
    "Estimate",
    "Experiment",
    "Instance",
    "Latency",
    "Nodes",
    "Placement",
    "Scaling",
    "Search",
    "Shrunk",
    "Simulator",
    "Slot",
    "Stage",
    "TuningSpec",
    "amdahl",
    "best_naive",
    "best_static",
    "duration_s",
    "estimate",
    "fastest",
    "hyperband",
    "json_schema",
    "moves",
    "parse_spec",
    "place",
    "plan_deadlines",
    "plan_elastic",
    "read_spec",
    "scaling",
    "shrink",
    "successive_halving",
    "unplaced",
]
