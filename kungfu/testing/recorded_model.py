"""A model of a recorded job: estimates how the job behaves at other sizes, as far as the record allows."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kungfu.compiler import CompiledPolicies
from kungfu.errors import UsageError
from kungfu.event_log.events import LoggedEvent, RescaleEvent, of_topics
from kungfu.testing.cluster_model import CUT, ClusterModel, PeerSpeeds, Rescaling, SimulatedStep, Start
from kungfu.trace import RecordedStep, Trace

_GUESSED_JOINING_S, _GUESSED_STOP_S = 10.0, 0.1
_NORMS = ("norm_squared(grads)", "norm_squared(mean_grads)")
_MOST_JITTER = 0.33
_ALIKE = 0.8  # of the median speed: a slower peer is a straggler
_WINDOW = 30  # steps over which the noise scale is averaged
_OFTEN = 20  # the maximum number of steps, as a multiple of the recorded ones: a policy may reduce the batch


@dataclass(frozen=True)
class SizeMeasured:
    """The measurements of the steps that a recorded job did with one number of peers."""

    size: int
    steps: int  # the number of steps with a known time: all but the first two of each view
    samples_per_s: float  # the samples of these steps, divided by their seconds
    spread: float  # the standard deviation of a step's throughput, as a fraction of its mean


@dataclass(frozen=True)
class RecordedJob:
    """The measurements of a recorded job."""

    sizes: Mapping[int, SizeMeasured]
    changes: Sequence[tuple[int, int]]  # the first step of each view and its number of peers
    samples: int  # of all recorded steps
    seconds: float  # from the first recorded step to the end of the last one
    peer_seconds: float  # of all peers together, each counted in the views that included it
    # The seconds outside stops and outside steps of measured sizes, such as first steps of views, pauses and
    # checkpoints. A policy does not affect them.
    other_s: float
    rescaling: Rescaling  # measured or guessed
    guesses: tuple[str, ...]  # descriptions of the guessed numbers


def measure_job(trace: Trace, events: Iterable[LoggedEvent] = ()) -> RecordedJob:
    """Measures a job from its recorded steps and events; without events the cost of a rescale is guessed."""
    steps, rescales = trace.steps, of_topics(events, "rescale")
    timed = list(_timed(steps))
    sizes = {
        size: _measured(size, [(s, n) for at, s, n in timed if at.size == size])
        for size in {at.size for at, _, _ in timed}
    }
    durations = list(_durations(steps, sizes))
    rescaling, guesses = _rescaling(rescales)
    seconds, samples = sum(durations), sum(_samples(one) for one in steps)
    usual = sum(_usual(one, sizes) for one in steps)
    entered = (one for before, one in itertools.pairwise(steps) if one.view != before.view)
    changes = [(one.step, one.size) for one in (steps[0], *entered)]
    stops = sum(one.stop_s for one in rescales)
    peer_seconds = sum(duration * one.size for one, duration in zip(steps, durations, strict=True))
    other_s = max(0.0, seconds - usual - stops)
    return RecordedJob(
        dict(sorted(sizes.items())), changes, samples, seconds, peer_seconds, other_s, rescaling, guesses
    )


def model_of_job(job: RecordedJob, trace: Trace, plan: CompiledPolicies) -> ClusterModel:
    """The model of a recorded job, for a simulation of `plan`. Raises ``UsageError`` if fewer than two sizes were
    measured, since the speed at all other sizes is then unknown."""
    if len(job.sizes) < 2:
        raise UsageError(_one_size(job))
    first, jitter = trace.steps[0], _jitter(trace.steps)
    start = Start(
        size=first.size,
        min_size=min(int(first.agreed.get("min_size", 1)), first.size),
        max_size=max(int(first.agreed.get("max_size", first.size)), first.size),
        global_batch_size=max(1, int(first.agreed.get("global_batch_size", _samples(first)))),
        learning_rate=_finite(first.agreed.get("learning_rate"), 0.0),
        epoch_samples=int(first.agreed.get("epoch_samples", 0)),
        job_samples=job.samples,
    )
    speeds = {size: measured.samples_per_s for size, measured in job.sizes.items()}
    given = {giver: {name: _followed(trace, name) for name in plan.given_by(giver)} for giver in ("publish", "feed")}
    return ClusterModel(
        lambda size: throughput_between(speeds, size) * _slowest(jitter, size),
        steps=_OFTEN * len(trace.steps),
        start=start,
        noise_by_step=_interpolated(_noise(trace.steps)),
        loss_by_step=_followed(trace, "mean_loss"),
        rescaling=job.rescaling,
        speeds=PeerSpeeds(jitter),
        published_by_step=given["publish"],
        fed_by_step=given["feed"],
    )


def throughput_between(speeds: Mapping[int, float], size: int) -> float:
    """Estimates the throughput at a size from the measured sizes.

    The estimate is linear between two measured sizes. Below the smallest size, each peer is as fast as at that size.
    Above the largest size, each additional peer adds as much as each peer between the two largest sizes, at least 0.

    Args:
        speeds: Samples per second, by measured size.
        size: The number of peers.

    Returns:
        Samples per second; NaN above the largest size if only one size was measured.

    >>> [throughput_between({2: 200.0, 4: 300.0}, size) for size in (1, 3, 6)]
    [100.0, 250.0, 400.0]
    """
    seen = sorted(speeds)
    if size <= seen[0]:
        return speeds[seen[0]] * size / seen[0]
    if size > seen[-1]:
        # The gain from one more peer was never measured.
        if len(seen) < 2:
            return math.nan
        before, last = seen[-2:]
        slope = (speeds[last] - speeds[before]) / (last - before)
        return speeds[last] + max(0.0, slope) * (size - last)
    return float(np.interp(size, seen, [speeds[one] for one in seen]))


def guesses_of(job: RecordedJob, trace: Trace, sizes: Iterable[int], batches: Iterable[int]) -> tuple[str, ...]:
    """Describes what a job's model guessed, for the ``sizes`` and ``batches`` that occurred when the model ran."""
    seen = sorted(job.sizes)
    between = sorted({one for one in sizes if one not in seen and seen[0] < one < seen[-1]})
    above, below = sorted({one for one in sizes if one > seen[-1]}), sorted({one for one in sizes if one < seen[0]})
    said = list(job.guesses)
    if between:
        said.append(f"{_peers(between)} never seen: their throughput lies on a line between the sizes beside them")
    if above:
        said.append(
            f"{_peers(above)} never seen, beyond the largest size that was ({seen[-1]}): a guess that "
            f"each more adds what each added from {seen[-2]} to {seen[-1]}"
        )
    if below:
        said.append(
            f"{_peers(below)} never seen, below the smallest size that was ({seen[0]}): a guess that a "
            "peer is as fast as there"
        )
    least = _least_speed(trace.steps)
    if least < _ALIKE:
        said.append(
            f"a peer ran at {least:.0%} of the median speed: the peers of the model are alike and as fast as all "
            "together were, so a straggler that is replaced there saves nothing"
        )
    known = [_samples(one) for one in trace.steps]
    strange = sorted({one for one in batches if not min(known) <= one <= max(known)})
    if strange:
        said.append(
            f"batches of {strange[0]:,} to {strange[-1]:,} samples were never seen: loss and noise scale are taken to "
            "follow the samples that were trained on, and speed the number of peers alone"
        )
    return tuple(said)


def _one_size(job: RecordedJob) -> str:
    if not job.sizes:
        return "no view of this record lasted for three steps, so the speed of the job is not known"
    (only,) = job.sizes
    peers = f"{only} peers" if only > 1 else "1 peer"
    return (
        f"this record has one size only, {peers}: nothing in it shows how fast the job is with another number of them"
    )


def _peers(sizes: Sequence[int]) -> str:
    return f"{', '.join(map(str, sizes))} peers were" if sizes != [1] else "1 peer was"


# ---- measurements from the steps -------------------------------------------------------------------------------------


def _samples(step: RecordedStep) -> int:
    """The number of samples of all peers in a step; 0 if unknown."""
    total = step.agreed.get("total_samples")
    if total is None:
        total = sum(one.get("samples", 0.0) for one in step.local)
    return round(_finite(total, 0.0))


def _timed(steps: Sequence[RecordedStep]) -> Iterator[tuple[RecordedStep, float, int]]:
    """Yields each step, its seconds and its samples; omits a step if the view's next step recorded no seconds."""
    for one, after in itertools.pairwise(steps):
        seconds = _finite(after.local[0].get("step_seconds"), 0.0)
        if after.view == one.view and after.step == one.step + 1 and seconds > 0:
            yield one, seconds, _samples(one)


def _measured(size: int, steps: Sequence[tuple[float, int]]) -> SizeMeasured:
    seconds, samples = (np.array(values, np.float64) for values in zip(*steps, strict=True))
    rates = samples / seconds
    return SizeMeasured(size, len(steps), float(samples.sum() / seconds.sum()), float(rates.std() / rates.mean()))


def _durations(steps: Sequence[RecordedStep], sizes: Mapping[int, SizeMeasured]) -> Iterator[float]:
    """The seconds from the beginning of each step to the beginning of the next one, on the clock of rank 0."""
    for one, after in itertools.pairwise(steps):
        passed = after.local[0].get("clock_seconds", math.nan) - one.local[0].get("clock_seconds", math.nan)
        # The clock of a new rank 0 starts at another time, and a gap in the record is not a step.
        yield passed if 0 < passed < math.inf and after.step == one.step + 1 else _usual(one, sizes)
    yield _usual(steps[-1], sizes)


def _usual(step: RecordedStep, sizes: Mapping[int, SizeMeasured]) -> float:
    measured = sizes.get(step.size)
    return _samples(step) / measured.samples_per_s if measured else 0.0


def _rescaling(rescales: Sequence[RescaleEvent]) -> tuple[Rescaling, tuple[str, ...]]:
    """The cost of a change of the cluster, from medians of the measurements, and descriptions of the guessed values."""
    guesses = []
    stop_s, joining_s = usual_times(rescales)
    if stop_s is None:
        guesses.append(f"no rescale is in the record: a guess that one stops the job for {_GUESSED_STOP_S:g} s")
    if joining_s is None:
        guesses.append(f"no peer joined in the record: a guess that a joiner takes {_GUESSED_JOINING_S:g} s")
    times = {"stop_s": _GUESSED_STOP_S if stop_s is None else stop_s, "joining_s": joining_s or _GUESSED_JOINING_S}
    return Rescaling(joining_steps=1, **times), tuple(guesses)


def usual_times(rescales: Iterable[RescaleEvent]) -> tuple[float | None, float | None]:
    """The median seconds for which a rescale stops training, and of a joiner's preparation; ``None`` if unknown."""
    stops = [one.stop_s for one in rescales if one.stop_s >= 0]
    joining = [one.parts.get("spawn_s", 0.0) + one.parts.get("ready_s", 0.0) for one in rescales if one.joined]
    joining = [one for one in joining if one > 0]
    return statistics.median(stops) if stops else None, statistics.median(joining) if joining else None


def _own_times(steps: Sequence[RecordedStep]) -> Iterator[list[Any]]:
    """Yields, for each view, the compute seconds per sample of each peer with at least 10 known steps."""
    for _, group in itertools.groupby(steps, key=lambda one: one.view):
        view, found = list(group), []
        for rank in range(view[0].size):
            own = [_finite(one.local[rank].get("busy_seconds"), 0.0) for one in view]
            shares = [_finite(one.local[rank].get("samples"), 0.0) for one in view]
            times = np.array([busy / share for busy, share in zip(own, shares, strict=True) if busy > 0 and share > 0])
            if len(times) >= 10:
                found.append(times)
        yield found


def _jitter(steps: Sequence[RecordedStep]) -> float:
    """The standard deviation of a peer's step time, as a fraction of the mean; robust to single pauses."""
    spreads = []
    for times in itertools.chain.from_iterable(_own_times(steps)):
        middle = float(np.median(times))
        spreads.append(1.4826 * float(np.median(np.abs(times - middle))) / middle)
    return min(float(np.median(spreads)), _MOST_JITTER) if spreads else 0.0


def _least_speed(steps: Sequence[RecordedStep]) -> float:
    """The speed of the slowest peer in any view, as a fraction of that view's median speed."""
    views = [[float(np.median(times)) for times in found] for found in _own_times(steps) if len(found) > 1]
    return min((float(np.median(times)) / max(times) for times in views), default=1.0)


def _slowest(jitter: float, size: int) -> float:
    """The step time of the slowest of ``size`` peers, relative to the mean; recorded step times include this factor."""
    return 1 + jitter * _largest_draw(size) if jitter and size > 1 else 1.0


@functools.cache
def _largest_draw(peers: int) -> float:
    """The expected maximum of this many draws from the distribution of a peer's step times."""
    draws = np.clip(np.random.RandomState(peers).standard_normal((4000, peers)), -CUT, CUT)
    return float(draws.max(axis=1).mean())


# ---- signals as functions of the samples done ------------------------------------------------------------------------


def _noise(steps: Sequence[RecordedStep]) -> Iterator[tuple[float, float]]:
    """Yields the samples done and the gradient noise scale, averaged over `_WINDOW` of the steps that record norms."""
    local, mean = _NORMS
    pairs = []
    for one in steps:
        whole = _finite(one.agreed.get("total_samples"), 0.0)
        own = [(_finite(peer.get("samples"), 0.0), _finite(peer.get(local), -1.0)) for peer in one.local]
        own = [(share, norm) for share, norm in own if share > 0 and norm >= 0]
        big = _finite(one.agreed.get(mean), -1.0)
        if len(own) > 1 and big >= 0 and whole > 0:
            share, norm = (float(np.mean(values)) for values in zip(*own, strict=True))
            # McCandlish et al., appendix A: signal and noise from the norms at two batch sizes.
            signal = (whole * big - share * norm) / (whole - share)
            noise = (norm - big) / (1 / share - 1 / whole)
            pairs.append((_finite(one.agreed.get("samples_done"), 0.0), signal, noise))
    for at in range(0, len(pairs), _WINDOW):
        done, signal, noise = (float(np.mean(values)) for values in zip(*pairs[at : at + _WINDOW], strict=True))
        if signal > 0:
            yield done, max(0.0, noise / signal)


def _followed(trace: Trace, name: str) -> Callable[[SimulatedStep], float]:
    """The recorded values of a source (a signal that rules read), as a function of the number of samples done."""
    pairs = []
    for one in trace.steps:
        value = _finite(one.agreed.get(name, one.local[0].get(name)), math.nan)
        if math.isfinite(value):
            pairs.append((_finite(one.agreed.get("samples_done"), 0.0), value))
    return _interpolated(pairs)


def _interpolated(pairs: Iterable[tuple[float, float]]) -> Callable[[SimulatedStep], float]:
    known = sorted(pairs)
    if not known:
        return lambda at: math.nan
    begin = known[0][0]
    places, values = (np.array(column) for column in zip(*known, strict=True))
    return lambda at: float(np.interp(begin + at.samples_done, places, values))


def _finite(value: Any, otherwise: float) -> float:
    number = float(value) if isinstance(value, (int, float)) else math.nan
    return number if math.isfinite(number) else otherwise
