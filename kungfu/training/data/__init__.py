"""Data: where samples come from, in which order peers take them, and the loader that is ahead of the step."""

from kungfu.training.data.batch_plan import BatchPlan, make_batch_plan
from kungfu.training.data.loader import Stamps, batches, is_stale
from kungfu.training.data.sampler import Remainder

__all__ = ["BatchPlan", "Remainder", "Stamps", "batches", "is_stale", "make_batch_plan"]
