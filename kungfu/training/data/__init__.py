"""Data: sources of samples, the order in which peers use samples, and a loader that runs ahead of the steps."""

from kungfu.training.data.batch_plan import BatchPlan, make_batch_plan
from kungfu.training.data.sampler import Remainder

__all__ = ["BatchPlan", "Remainder", "make_batch_plan"]
