"""Planning a hyperparameter search: how many GPUs each stage should hold, what that takes, and where trials go.

Deciding only, in plain Python and NumPy: nothing here starts an instance or moves a trial.
"""

from kungfu.tune.model import (
    Cloud,
    Dataset,
    Delays,
    Experiment,
    Instance,
    Latency,
    Scaling,
    Stage,
    amdahl,
    hyperband,
    scaling,
    successive_halving,
)
from kungfu.tune.placement import Nodes, Placement, Shrunk, Slot, moves, place, shrink, unplaced
from kungfu.tune.plan import Search, best_naive, best_static, fastest, plan_deadlines, plan_elastic
from kungfu.tune.simulate import Estimate, Simulator, estimate
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
