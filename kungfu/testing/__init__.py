"""For the tests of those who write policies: what a policy decides, without training anything."""

from kungfu.compiler import FiredRule
from kungfu.testing.cluster_model import ClusterModel, Rescaling, Start
from kungfu.testing.run_policy import run_policy

__all__ = ["ClusterModel", "FiredRule", "Rescaling", "Start", "run_policy"]
