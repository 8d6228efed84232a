"""The schedulers: rigid ones, Tiresias rigid and elastic, and Elan's two elastic ones, each a `ClusterPolicy`."""

from kungfu_planning.schedule.cluster_policies.elan import elastic_backfill, elastic_fifo
from kungfu_planning.schedule.cluster_policies.rigid import conservative_backfill, easy_backfill, fifo, first_fit
from kungfu_planning.schedule.cluster_policies.tiresias import elastic_tiresias, tiresias

__all__ = [
    "conservative_backfill",
    "easy_backfill",
    "elastic_backfill",
    "elastic_fifo",
    "elastic_tiresias",
    "fifo",
    "first_fit",
    "tiresias",
]
