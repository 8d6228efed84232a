"""Data: the sources of samples, the order in which peers use them, and the loader that works ahead of the step."""

from kungfu.training.data.batch_plan import BatchPlan, make_batch_plan
from kungfu.training.data.loader import Stamps, batches, is_stale
from kungfu.training.data.sampler import Remainder

__all__ = ["BatchPlan", "Remainder", "Stamps", "batches", "is_stale", "make_batch_plan"]
