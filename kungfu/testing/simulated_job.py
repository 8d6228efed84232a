"""A modelled job under way: what it offers to a policy in each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kungfu.runtime.core.terms import Terms
from kungfu.testing.cluster_model import ClusterModel

__all__ = ["SimulatedJob", "agreed_sources", "local_sources", "stepped"]


@dataclass
class Clocks:
    """Seconds: since the first step, of the last step, of the last rescale; and for how many steps the view lasts."""

    total_s: float = 0.0
    step_s: float = math.nan
    rescale_s: float = math.nan
    view_steps: int = 0


@dataclass
class SimulatedJob:
    """A job between two steps; `peers` are the numbers of those in the view, in rank order."""

    model: ClusterModel
    peers: list[int]
    terms: Terms
    view: int = 1
    step: int = 1
    samples_done: int = 0
    pending: bool = False
    clocks: Clocks = field(default_factory=Clocks)

    @classmethod
    def started(cls, model: ClusterModel) -> SimulatedJob:
        """Before the first step."""
        start = model.start
        terms = Terms(start.global_batch_size, start.global_batch_size / start.size)
        return cls(model, list(range(start.size)), terms)

    @property
    def size(self) -> int:
        """Peers in the view."""
        return len(self.peers)

    @property
    def learning_rate(self) -> float:
        """Of the step that comes."""
        ramp = self.terms.ramp
        if ramp is None:
            return self.model.start.learning_rate
        return ramp.at(self.step - 1 if ramp.unit == "steps" else self.samples_done)


def agreed_sources(job: SimulatedJob) -> dict[str, Any]:
    """What all peers hold the same of, in the step that comes."""
    start, batch = job.model.start, job.terms.global_batch_size
    return {
        "step": job.step,
        "size": job.size,
        "min_size": start.min_size,
        "max_size": start.max_size,
        "refused_size": job.terms.refused_size,
        "view": job.view,
        "epoch_samples": 0,
        "pending": job.pending,
        "global_batch_size": batch,
        "local_batch_size": batch / job.size,
        "total_samples": float(batch),
        "samples_done": job.samples_done,
        "learning_rate": job.learning_rate,
        "mean_loss": job.model.loss_by_step(job.step),
        "norm_squared(mean_grads)": 1 + job.model.noise_by_step(job.step) / batch,
    }


def local_sources(job: SimulatedJob) -> list[Mapping[str, Any]]:
    """What each peer has for itself, in rank order."""
    noise, busy = job.model.noise_by_step(job.step), _busy_seconds(job)
    shared = {
        "loss": job.model.loss_by_step(job.step),
        "clock_seconds": job.clocks.total_s,
        "rescale_seconds": job.clocks.rescale_s,
        "step_seconds": job.clocks.step_s if job.clocks.view_steps >= 2 else math.nan,
    }
    return [
        {
            **shared,
            "rank": rank,
            "samples": float(share),
            "busy_seconds": busy[rank] if job.clocks.view_steps else math.nan,
            "norm_squared(grads)": 1 + noise / share if share else 0.0,
        }
        for rank, share in enumerate(_shares(job))
    ]


def stepped(job: SimulatedJob) -> None:
    """The step is done: it took as long as its slowest peer."""
    clocks = job.clocks
    clocks.step_s = max(_busy_seconds(job))
    clocks.total_s += clocks.step_s
    clocks.view_steps += 1
    job.samples_done += job.terms.global_batch_size
    job.step += 1


def _shares(job: SimulatedJob) -> list[int]:
    """The samples of a step as they are cut: the first peers take one more where it does not come out even."""
    whole, more = divmod(job.terms.global_batch_size, job.size)
    return [whole + (rank < more) for rank in range(job.size)]


def _busy_seconds(job: SimulatedJob) -> list[float]:
    each = job.model.throughput(job.size) / job.size  # samples a second of one peer at full speed
    speeds = [job.model.speed_by_peer.get(peer, 1.0) for peer in job.peers]
    return [share / (each * speed) for share, speed in zip(_shares(job), speeds, strict=True)]
