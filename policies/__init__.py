"""Prebuilt policies, written like custom ones."""

from kungfu.policies.autoscale import autoscale
from kungfu.policies.gns_batch import gns_batch
from kungfu.policies.hybrid_scaling import hybrid_scaling
from kungfu.policies.linear_scaling import linear_scaling
from kungfu.policies.replace_stragglers import replace_stragglers
from kungfu.policies.schedule import schedule
from kungfu.policies.stop_on_nan import stop_on_nan
from kungfu.policies.utility import utility

__all__ = [
    "autoscale",
    "gns_batch",
    "hybrid_scaling",
    "linear_scaling",
    "replace_stragglers",
    "schedule",
    "stop_on_nan",
    "utility",
]
