"""A modelled job under way: its clocks, step times and hosts, and the values that a policy reads in each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kungfu.runtime.core.cluster.placement import AVOIDED_S, host_for
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import spread
from kungfu.runtime.settings import Limits
from kungfu.testing.cluster_model import CUT, ClusterModel, HostSlots, PeerSpeeds, SimulatedStep

Place = tuple[int, int]  # the number of a host, and of a slot on it
_BLOCK = 128


@dataclass
class Clocks:
    """The seconds of a job: in total, of its last step and last rescale, and summed over its peers."""

    total_s: float = 0.0  # since the first step
    step_s: float = math.nan  # NaN after a barrier and at the beginning of a view, as in a real job
    rescale_s: float = math.nan  # the seconds for which the last rescale stopped the job
    after_barrier: bool = True  # a barrier was held since the last step: the next step is not measured
    peer_s: float = 0.0  # summed over all peers, each from the barrier where it joined to the one where it left

    def stand(self, seconds: float, *, size: int) -> None:
        """Advances the clocks by ``seconds``, during which ``size`` peers are in the job, training or not."""
        self.total_s += seconds
        self.peer_s += seconds * size


@dataclass
class SpeedSampler:
    """Draws the relative step time of each peer, once per step. NumPy's legacy generator produces the same stream in
    every version of NumPy."""

    speeds: PeerSpeeds
    # One generator per peer, so that a change of the membership does not affect the draws of other peers.
    streams: dict[int, Iterator[float]] = field(default_factory=dict)

    def durations(self, peers: Sequence[int]) -> list[float]:
        """The next step time of each of these peers, as a multiple of the mean."""
        if not self.speeds.jitter:
            return [1.0] * len(peers)
        return [next(self.streams.setdefault(peer, _draws(self.speeds, peer))) for peer in peers]


def _draws(speeds: PeerSpeeds, peer: int) -> Iterator[float]:
    generator = np.random.RandomState([speeds.seed, peer])
    while True:
        block = generator.standard_normal(_BLOCK)
        yield from (1 + speeds.jitter * block[np.abs(block) <= CUT]).tolist()


@dataclass
class SimulatedHosts:
    """The hosts of a modelled job, and the host and slot of each peer and joiner."""

    hosts: HostSlots
    places: dict[int, Place] = field(default_factory=dict)  # by the id of the peer
    # The places of removed peers, with the second of the job at which they were removed.
    let_go: dict[int, tuple[Place, float]] = field(default_factory=dict)

    @classmethod
    def filled(cls, hosts: HostSlots, peers: Iterable[int]) -> SimulatedHosts:
        """Creates the hosts, and places the first peers of a job on them, host by host."""
        made = cls(hosts)
        for peer in peers:
            made.start(peer, 0.0)
        return made

    def start(self, peer: int, now: float, *, leaving: Iterable[int] = ()) -> bool:
        """Places a peer on a host by the rule of a real job, which avoids hosts with recently removed peers.

        Args:
            peer: The id of the peer.
            now: The time of the job, in seconds.
            leaving: The peers that this peer will replace; other hosts are preferred to the hosts of these peers.

        Returns:
            True if a host had a free slot.
        """
        taken = Counter(host for host, _ in self.places.values())
        room = {host: slots - taken[host] for host, slots in enumerate(self.hosts.room)}
        avoided = Counter(host for (host, _), at in self.let_go.values() if now - at < AVOIDED_S)
        host = host_for(room, avoided, left={self.places[one][0] for one in leaving if one in self.places})
        if host is None:
            return False
        self.places[peer] = (host, self._slot(host, now))
        return True

    def stop(self, peers: Iterable[int], now: float) -> None:
        """Frees the places of peers that have left the job."""
        for peer in peers:
            self.let_go[peer] = self.places.pop(peer), now

    def dismiss(self, peers: Iterable[int]) -> None:
        """Frees the places of joiners that will not join."""
        for peer in peers:
            self.places.pop(peer, None)

    def joiners_beside(self, peers: Iterable[int], joiners: Iterable[int]) -> list[int]:
        """The number of joiners that start on the host of each of these peers."""
        starting = Counter(self.places[one][0] for one in joiners if one in self.places)
        return [starting[self.places[peer][0]] for peer in peers]

    def _slot(self, host: int, now: float) -> int:
        """The lowest free slot of a host; recently freed slots come last, in the order in which they were freed."""
        taken = {slot for one, slot in self.places.values() if one == host}
        left = {slot: at for (one, slot), at in self.let_go.values() if one == host and now - at < AVOIDED_S}
        # Besides these slots, one slot that was never used is considered, if the host has one.
        known = min(self.hosts.room[host], len(taken) + len(left) + 1)
        free = (slot for slot in range(known) if slot not in taken)
        return min(free, key=lambda slot: (left.get(slot, -math.inf), slot))


@dataclass
class SimulatedWindow:
    """The steps of a modelled job since its last average of models; empty if the job averages gradients."""

    steps: int = 0
    samples: int = 0
    loss: float = 0.0  # the sum over the samples
    busy: dict[int, float] = field(default_factory=dict)  # the compute seconds by the id of the peer
    fed: dict[str, float] = field(default_factory=dict)  # the values that no message has carried yet, by name


@dataclass
class SimulatedJob:
    """The state of a modelled job between two steps."""

    model: ClusterModel
    peers: list[int]  # the ids of the peers in the view, in rank order
    terms: Terms
    hosts: SimulatedHosts  # of the peers and of the joiners
    sampler: SpeedSampler
    view: int = 1  # the version of the view
    step: int = 1  # the number of the next step
    samples_done: int = 0  # by the steps before the next one
    barrier_due: bool = False  # pending requests or joiners call for a barrier after the next step
    change_due: bool = False  # that barrier may change the cluster
    joiners: tuple[int, ...] = ()  # their ids
    rate_factor: float = 1.0  # the last by which a policy multiplied the learning rate
    drawn: tuple[int, StepDraw] | None = None  # the number of a step, and the results of the model's functions for it
    clocks: Clocks = field(default_factory=Clocks)
    window: SimulatedWindow = field(default_factory=SimulatedWindow)

    @classmethod
    def started(cls, model: ClusterModel, *, max_global_batch: int = 0, average_every: int = 0) -> SimulatedJob:
        """Creates the job as it is before its first step, with the limit of its global batch (0: none), and with the
        steps from one average of models to the next (0: it averages gradients)."""
        start, peers = model.start, list(range(model.start.size))
        share = start.global_batch_size / start.size
        terms = Terms(start.global_batch_size, share, max_global_batch=max_global_batch, average_every=average_every)
        return cls(model, peers, terms, SimulatedHosts.filled(model.hosts, peers), SpeedSampler(model.speeds))

    @property
    def limits(self) -> Limits:
        """The minimum and maximum number of peers."""
        return Limits(self.model.start.min_size, self.model.start.max_size)

    @property
    def size(self) -> int:
        """The number of peers in the view."""
        return len(self.peers)

    def ready_at(self) -> tuple[int, float]:
        """The first step, and the earliest time of the job in seconds, at which a peer that starts now can join."""
        rescaling = self.model.rescaling
        return self.step + rescaling.joining_steps, self.clocks.total_s + rescaling.joining_s

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step, without the factor of a policy."""
        ramp = self.terms.ramp
        if ramp is None:
            return self.model.start.learning_rate
        return ramp.at(self.step - 1 if ramp.unit == "steps" else self.samples_done)

    @property
    def samples(self) -> int:
        """The samples of the next step: a batch, or the rest of the epoch or job if that is less."""
        start, most = self.model.start, self.terms.global_batch_size
        if start.epoch_samples:
            most = min(most, start.epoch_samples - self.samples_done % start.epoch_samples)
        return min(most, start.job_samples - self.samples_done) if start.job_samples else most

    @property
    def is_synchronising(self) -> bool:
        """True if the peers send each other anything in the next step: with averages of models, in every H-th step
        since the last average, and in the last step of an epoch or of the job."""
        start, done = self.model.start, self.samples_done + self.samples
        ends = done == start.job_samples or (start.epoch_samples > 0 and done % start.epoch_samples == 0)
        return ends or self.window.steps + 1 >= self.terms.average_every

    @property
    def is_over(self) -> bool:
        """True if there is no further step."""
        start = self.model.start
        done = 0 < start.job_samples <= self.samples_done
        return done or self.terms.stopped or self.step > self.model.steps

    @property
    def position(self) -> SimulatedStep:
        """The next step (number, size, samples, time and others), in the form that the model's functions receive."""
        return SimulatedStep(
            self.step,
            size=self.size,
            samples=self.samples,
            samples_done=self.samples_done,
            learning_rate=self.learning_rate * self.rate_factor,
            seconds=self.clocks.total_s,
        )


@dataclass(frozen=True)
class StepDraw:
    """The loss of a modelled step, and its gradients' norms."""

    loss: float
    norms: GradientNorms


def step_draw(job: SimulatedJob) -> StepDraw:
    """The loss and the norms of the next step; the model's functions, which may draw at random, are called once."""
    if job.drawn is None or job.drawn[0] != job.step:
        position = job.position
        job.drawn = job.step, StepDraw(job.model.loss_by_step(position), gradient_norms(job))
    return job.drawn[1]


def agreed_sources(job: SimulatedJob) -> dict[str, Any]:
    """The sources of the next step that are equal on all peers, by name."""
    start, batch, drawn, window = job.model.start, job.terms.global_batch_size, step_draw(job), job.window
    loss = drawn.loss
    if window.steps:
        loss = (window.loss + loss * job.samples) / (window.samples + job.samples)
    return {
        "step": job.step,
        "size": job.size,
        "min_size": start.min_size,
        "max_size": start.max_size,
        "refused_size": job.terms.refused_size,
        "replaced_peers": job.terms.replaced_peers,
        "view": job.view,
        "epoch_samples": start.epoch_samples,
        "job_samples": start.job_samples,
        "pending": job.change_due or job.terms.target_size > 0,
        "barrier_due": job.barrier_due,
        "change_due": job.change_due,
        "target_size": job.terms.target_size,
        "replacement_refused": job.terms.replacement_refused,
        "replacing": bool(job.terms.leaving or job.terms.departing),
        "global_batch_size": batch,
        "local_batch_size": batch / job.size,
        "total_samples": float(job.samples),
        "epoch": job.samples_done // start.epoch_samples if start.epoch_samples else 0,
        "samples_done": job.samples_done,
        "learning_rate": job.learning_rate,
        "requested_rate": 0.0 if job.terms.ramp is None else job.terms.ramp.asked,
        "mean_loss": loss,
        **({"steps_since_average": window.steps + 1} if job.terms.average_every else {}),
        "all_finite(mean_grads)": job.model.has_finite_gradients(drawn.loss),
        "norm_squared(mean_grads)": drawn.norms.mean,
    }


def local_sources(job: SimulatedJob, busy: Sequence[float]) -> list[Mapping[str, Any]]:
    """For each rank, the peer's own sources of the next step, by name; for ``busy`` see `busy_seconds`."""
    position, drawn = job.position, step_draw(job)
    norms = drawn.norms
    joiners = job.hosts.joiners_beside(job.peers, job.joiners)
    shared = {
        "loss": drawn.loss,
        "clock_seconds": job.clocks.total_s,
        "rescale_seconds": job.clocks.rescale_s,
        "step_seconds": job.clocks.step_s,
        "all_finite(grads)": job.model.has_finite_gradients(drawn.loss),
        **{name: value(position) for name, value in job.model.published_by_step.items()},
        **_fed(job),
    }
    return [
        {
            **shared,
            "rank": rank,
            "samples": float(share),
            "busy_seconds": math.nan if job.clocks.after_barrier else _busy_of_a_step(job, job.peers[rank], busy[rank]),
            "host_joiners": joiners[rank],
            "norm_squared(grads)": norms.local[rank],
            "micro_batches": norms.micro_batches[rank],
            "micro_batch_variance": norms.variance[rank],
        }
        for rank, share in enumerate(spread(position.samples, job.size))
    ]


def _fed(job: SimulatedJob) -> dict[str, float]:
    """The values that the program has fed by the next step, and that no message has carried; NaN for others."""
    given = {name: value(job.position) for name, value in job.model.fed_by_step.items()}
    return {name: job.window.fed.get(name, value) if math.isnan(value) else value for name, value in given.items()}


def _busy_of_a_step(job: SimulatedJob, peer: int, busy: float) -> float:
    """The compute seconds of a peer in a step, as the mean over the steps since the last average."""
    return (job.window.busy.get(peer, 0.0) + busy) / (job.window.steps + 1)


@dataclass(frozen=True)
class GradientNorms:
    """The gradients of a modelled step: for each rank the squared norm of its own gradient, its micro-batches with
    samples and the variance within its share; and the squared norm of the mean gradient."""

    local: Sequence[float]
    micro_batches: Sequence[int]
    variance: Sequence[float]
    mean: float


def gradient_norms(job: SimulatedJob) -> GradientNorms:
    """The norms of the next step's gradients; calls the model's function of the noise scale."""
    model, position = job.model, job.position
    noise, shares = model.noise_by_step(position), spread(position.samples, job.size)
    most = model.max_local_batch_size or position.samples
    micro = [[min(most, share - at) for at in range(0, share, most)] for share in shares]
    counts = [len(one) for one in micro]
    if not model.noise_jitter:
        local = [1 + noise / share if share else 0.0 for share in shares]
        within = [noise if count > 1 else math.nan for count in counts]
        return GradientNorms(local, counts, within, 1 + noise / position.samples)
    # The noise of a sample has the same variance in all directions; the true gradient lies in the first.
    directions = max(1, round(2 / model.noise_jitter**2))
    generator = np.random.RandomState([model.speeds.seed, job.step])
    gradients, variance = np.zeros((job.size, directions)), [math.nan] * job.size
    for rank, sizes in enumerate(micro):
        if sizes:
            weights = np.array(sizes, float)[:, None]
            own = generator.standard_normal((len(sizes), directions)) * np.sqrt(noise / directions / weights)
            own[:, 0] += 1
            gradients[rank] = (own * weights).sum(axis=0) / weights.sum()
            if len(sizes) > 1:
                variance[rank] = float((weights * (own - gradients[rank]) ** 2).sum() / (len(sizes) - 1))
    together = (gradients * np.array(shares)[:, None]).sum(axis=0) / position.samples
    return GradientNorms((gradients**2).sum(axis=1).tolist(), counts, variance, float((together**2).sum()))


def busy_seconds(job: SimulatedJob) -> list[float]:
    """The compute seconds of each peer in the next step, in rank order; each call draws new jitter."""
    each = job.model.throughput(job.size) / job.size  # samples per second of one peer at full speed
    shares, drawn = spread(job.samples, job.size), job.sampler.durations(job.peers)
    speeds = _peer_speeds(job)
    return [share / (each * speed) * more for share, speed, more in zip(shares, speeds, drawn, strict=True)]


def _peer_speeds(job: SimulatedJob) -> list[float]:
    """The fraction of full speed of each peer in the next step, in rank order."""
    model, places = job.model, job.hosts.places
    speeds = [model.speed_by_peer.get(peer, 1.0) for peer in job.peers]
    if model.speeds.slow:
        factors = (model.speeds.factor(peer, places[peer], job.step) for peer in job.peers)
        speeds = [speed * factor for speed, factor in zip(speeds, factors, strict=True)]
    if job.joiners and model.hosts.joining_speed < 1:
        speeds = [
            speed * (model.hosts.joining_speed if joiners else 1.0)
            for speed, joiners in zip(speeds, job.hosts.joiners_beside(job.peers, job.joiners), strict=True)
        ]
    return speeds


def stepped(job: SimulatedJob, busy: Sequence[float]) -> None:
    """Completes the next step; the steps since the last message take as long as the peer that is slowest in them."""
    clocks, window, is_synchronising = job.clocks, job.window, job.is_synchronising
    before = max(window.busy.values(), default=0.0)
    sums = {peer: window.busy.get(peer, 0.0) + one for peer, one in zip(job.peers, busy, strict=True)}
    seconds = max(sums.values())
    if is_synchronising:
        clocks.step_s = math.nan if clocks.after_barrier else seconds / (window.steps + 1)
        clocks.after_barrier = False
        job.window = SimulatedWindow()
    else:
        loss = window.loss + step_draw(job).loss * job.samples
        job.window = SimulatedWindow(window.steps + 1, window.samples + job.samples, loss, sums, _fed(job))
    clocks.stand(seconds - before, size=job.size)
    job.samples_done += job.samples
    job.step += 1


def moved(job: SimulatedJob, view: int, peers: Iterable[int]) -> None:
    """Enters another view: peers outside the view leave, and the change stops the job for a time."""
    stop_s, now, staying = job.model.rescaling.stop_s, job.clocks.total_s, list(peers)
    job.hosts.stop(set(job.peers) - set(staying), now)
    job.peers, job.view = staying, view
    job.clocks.step_s, job.clocks.rescale_s = math.nan, stop_s
    job.clocks.stand(stop_s, size=job.size)
