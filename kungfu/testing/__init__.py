"""Tests of policies without training: the decisions of a policy on a recorded run, on arrays or on a model."""

from kungfu.compiler import FiredRule
from kungfu.testing.cluster_model import ClusterModel, Rescaling, SimulatedStep, Start
from kungfu.testing.peer_speeds import PeerSpeeds, SlowPeer
from kungfu.testing.run_policy import run_policy
from kungfu.testing.simulated_hosts import HostSlots
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
