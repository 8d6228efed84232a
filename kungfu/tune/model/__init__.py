"""What is planned for: experiments, scaling curves, latencies, clouds."""

from kungfu.tune.model.cloud import Billing, Cloud, Dataset, Delays, Instance, Packing
from kungfu.tune.model.experiment import Experiment, Stage, hyperband, successive_halving
from kungfu.tune.model.latency import Latency
from kungfu.tune.model.scaling_curve import Scaling, amdahl, scaling

__all__ = [
    "Billing",
    "Cloud",
    "Dataset",
    "Delays",
    "Experiment",
    "Instance",
    "Latency",
    "Packing",
    "Scaling",
    "Stage",
    "amdahl",
    "hyperband",
    "scaling",
    "successive_halving",
]
