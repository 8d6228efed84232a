"""Tiresias' two-dimensional least attained service, and the two rules that make it elastic."""

from kungfu.schedule.tiresias.elastic import elastic_tiresias
from kungfu.schedule.tiresias.policy import tiresias
from kungfu.schedule.tiresias.queues import PAPER_QUANTA, Levels

__all__ = ["PAPER_QUANTA", "Levels", "elastic_tiresias", "tiresias"]
