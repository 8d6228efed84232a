"""Predicting what a plan takes: the simulator, its estimate, and the graph behind it."""

from kungfu.tune.simulate.estimation import Estimate, Plan, Sampled, estimate, sample
from kungfu.tune.simulate.simulator import Simulator

__all__ = ["Estimate", "Plan", "Sampled", "Simulator", "estimate", "sample"]
