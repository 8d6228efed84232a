"""Prebuilt policies, written like a user's own."""

from kungfu.policies.gns_batch import gns_batch
from kungfu.policies.hybrid_scaling import hybrid_scaling
from kungfu.policies.linear_scaling import linear_scaling
from kungfu.policies.scaling_schedule import scaling_schedule
from kungfu.policies.schedule import schedule
from kungfu.policies.stop_on_nan import stop_on_nan
from kungfu.policies.straggler_replacement import straggler_replacement
from kungfu.policies.worth_the_cost import worth_the_cost

__all__ = [
    "gns_batch",
    "hybrid_scaling",
    "linear_scaling",
    "scaling_schedule",
    "schedule",
    "stop_on_nan",
    "straggler_replacement",
    "worth_the_cost",
]
