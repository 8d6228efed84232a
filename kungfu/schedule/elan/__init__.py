"""Elan's elastic policies: admit by the fewest GPUs a job can run on, share the rest by marginal gain."""

from kungfu.schedule.elan.policies import elastic_backfill, elastic_fifo

__all__ = ["elastic_backfill", "elastic_fifo"]
