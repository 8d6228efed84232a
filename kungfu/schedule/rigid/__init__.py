"""Policies under which a job runs on exactly the GPUs it asked for, from its start to its end."""

from kungfu.schedule.rigid.conservative import conservative_backfill
from kungfu.schedule.rigid.easy import easy_backfill
from kungfu.schedule.rigid.fitting import first_fit_mask, prefix_that_fits
from kungfu.schedule.rigid.in_order import fifo, first_fit

__all__ = [
    "conservative_backfill",
    "easy_backfill",
    "fifo",
    "first_fit",
    "first_fit_mask",
    "prefix_that_fits",
]
