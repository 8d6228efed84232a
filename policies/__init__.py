"""Prebuilt policies, written like a user's own."""

from kungfu.policies.gns_batch import gns_batch
from kungfu.policies.linear_scaling import linear_scaling
from kungfu.policies.schedule import schedule

__all__ = ["gns_batch", "linear_scaling", "schedule"]
