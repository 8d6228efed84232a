"""Tests of policies without training: the decisions of a policy on a recorded run, on arrays or on a model."""

from kungfu.compiler import FiredRule
from kungfu.testing.cluster_model import ClusterModel, HostSlots, PeerSpeeds, Rescaling, SimulatedStep, SlowPeer, Start
from kungfu.testing.run_policy import run_policy
from kungfu.testing.simulated_run import SimulatedRun, ViewChange, run_on_model

__all__ = [
    "ClusterModel",
    "FiredRule",
    "HostSlots",
    "PeerSpeeds",
    "Rescaling",
    "SimulatedRun",
    "SimulatedStep",
    "SlowPeer",
    "Start",
    "ViewChange",
    "run_on_model",
    "run_policy",
]
