"""A job as Prometheus metrics: counters and histograms of events, gauges of the present state.

Names and units follow Prometheus' conventions: base units at the end of a name (``_seconds``, ``_bytes``, ``_ratio``)
and ``_total`` for counters. An unknown value has no sample: an unknown loss is not a loss of 0.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from kungfu import __version__
from kungfu.cli.report.narrative import rescale_count
from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.job import FIGURES_OF_JOB, Job
from kungfu.event_log.numbers import as_float, step_seconds
from kungfu.runtime.core.requests.request_log import RequestState

# A metric: its help, and its value in a job; None if unknown.
Figure = tuple[str, Callable[[Job], Any]]

# The fields of a step that have a separate gauge; every other number of a step is a named signal.
_OF_A_STEP = {
    "step": ("kungfu_step", "Number of the newest step; goes back where steps are done again."),
    "epoch": ("kungfu_epoch", "Epoch of the newest step, from 0."),
    "size": ("kungfu_peers", "Peers of the view in force."),
    "batch": ("kungfu_global_batch_size_samples", "Samples of the newest step over all peers."),
    "loss": ("kungfu_loss", "Mean loss of the newest step over all samples."),
    "learning_rate": ("kungfu_learning_rate", "The optimizer's learning rate in the newest step."),
    "samples_per_s": ("kungfu_throughput_samples_per_second", "Samples per second of the newest step that was timed."),
    "time": ("kungfu_last_step_timestamp_seconds", "When the newest step ended, in seconds since 1970."),
}


def _of_step(field: str) -> Callable[[Job], float | None]:
    return lambda job: job.known.get(field)


_GAUGES: Mapping[str, Figure] = {
    **{name: (meaning, _of_step(field)) for field, (name, meaning) in _OF_A_STEP.items()},
    "kungfu_peers": (_OF_A_STEP["size"][1], lambda job: job.size if job.view else job.known.get("size")),
    "kungfu_peers_wanted": (
        "Peers that the job should have: those of its start, or of the newest decision that was not refused.",
        lambda job: job.wanted or None,
    ),
    "kungfu_start_timestamp_seconds": (
        "When the job started, in seconds since 1970.", lambda job: job.started and (job.started.time or math.nan)
    ),
    "kungfu_last_checkpoint_timestamp_seconds": (
        "When the newest checkpoint was written, in seconds since 1970.",
        lambda job: job.checkpoint and (job.checkpoint.time or math.nan),
    ),
    "kungfu_checkpoint_size_bytes": (
        "Size of the newest checkpoint.", lambda job: job.checkpoint and (job.checkpoint.size_bytes or math.nan)
    ),
    "kungfu_peer_processes": (
        "Processes of peers that run, joiners and spares among them.",
        lambda job: sum(one.state != "ended" for one in job.peers.values()) if job.tally.counts else None,
    ),
    "kungfu_hosts": ("Hosts of the job.", lambda job: len(job.hosts_present) if job.tally.counts else None),
}  # fmt: skip
_COUNTERS: Mapping[str, Figure] = {
    "kungfu_rescales": (
        "Changes of the membership, but for losses and their replacements.", rescale_count
    ),
    "kungfu_recoveries": (
        "Losses of peers that the others survived.", lambda job: job.tally.counts.get("recovered", 0)
    ),
    "kungfu_lost_peers": ("Peers that were lost.", lambda job: job.tally.lost_peers),
    "kungfu_restarts": (
        "Starts of the job after a loss, from a checkpoint.", lambda job: job.tally.counts.get("restarted", 0)
    ),
    "kungfu_refusals": ("Changes whose peers could not be had.", lambda job: job.tally.counts.get("refused", 0)),
}  # fmt: skip
# The commands that change the size or the peers.
_COMMANDS = tuple(f"kungfu {name}" for name in ("resize", "scale-out", "scale-in", "migrate", "profile"))
# Counters with a label: the help, the label, the kind of event, and the label's values that start at 0, so that a rate
# includes the first event.
_TALLIES: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    "kungfu_decisions": ("Sizes that a rule or a command asked for.", "rule", "decision", _COMMANDS),
    "kungfu_requests": ("Requests from outside, by what they came to.", "state", "request", get_args(RequestState)),
    "kungfu_checkpoints": ("Checkpoints, by outcome.", "outcome", "checkpoint", ("written", "failed")),
}
# Limits of the buckets: a step takes from 1 ms on a CPU to minutes, and a stop from some milliseconds to a deadline.
_STEP_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_STOP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_STOPS = ("rescale", "recovery", "checkpoint")


class PrometheusMetrics(Collector):
    """The metrics of a job from the record of one host, in `registry`; receives events and steps from many threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock, self._job, self._began = threading.Lock(), Job(), time.time()
        self.registry.register(self)
        counted = {
            "steps": "Steps that were done, those that were done again counted again.",
            "samples": "Samples that were trained on.",
            "not_finite_steps": "Steps whose loss was NaN or infinite.",
        }
        self._steps, self._samples, self._not_finite = (
            Counter(f"kungfu_{name}", meaning, registry=self.registry) for name, meaning in counted.items()
        )
        meaning = "How long a step took, from the end of the one before."
        self._step_s = Histogram("kungfu_step_duration_seconds", meaning, buckets=_STEP_S, registry=self.registry)
        meaning = "For how long training stood still, by cause."
        self._stop_s = Histogram(
            "kungfu_stop_duration_seconds", meaning, ["cause"], buckets=_STOP_S, registry=self.registry
        )
        for cause in _STOPS:
            self._stop_s.labels(cause)

    def collect(self) -> Iterator[Metric]:
        """Yields the present metrics: counters of past events, and gauges of the newest known values."""
        job = self._job
        yield InfoMetricFamily("kungfu_build", "The version of kungfu.", value={"version": __version__})
        if job.started is not None and job.started.job:
            name = _utf8(job.started.job)
            yield InfoMetricFamily("kungfu_job", "The job.", value={"job_id": name})
            ended = GaugeMetricFamily("kungfu_job_ended", "1 once the job has ended, else 0.", labels=["job_id"])
            ended.add_metric([name], float(job.ending is not None))
            yield ended
        for name, (meaning, value_in) in _GAUGES.items():
            if (value := value_in(job)) is not None:
                yield GaugeMetricFamily(name, meaning, value=value)
        signals = GaugeMetricFamily(
            "kungfu_signal", "Newest value of a named signal of the policies.", labels=["signal"]
        )
        for name, value in job.known.items():
            if name not in {*_OF_A_STEP, *FIGURES_OF_JOB}:
                signals.add_metric([_utf8(name)], value)
        meaning = "Speed of a peer as a fraction of the median peer's, where a policy measures it."
        speeds = GaugeMetricFamily("kungfu_peer_speed_ratio", meaning, labels=["peer"])
        for peer, speed in job.speeds.items():
            speeds.add_metric([str(peer)], speed)
        yield from (signals, speeds)
        for name, (meaning, count_in) in _COUNTERS.items():
            yield CounterMetricFamily(name, meaning, value=count_in(job), created=self._began)
        for name, (meaning, label, kind, begun) in _TALLIES.items():
            family = CounterMetricFamily(name, meaning, labels=[label])
            for key, count in {**dict.fromkeys(begun, 0), **job.tally.labelled.get(kind, {})}.items():
                family.add_metric([_utf8(key)], count, created=self._began)
            yield family

    def status(self, fields: Mapping[str, Any]) -> None:
        """Updates the metrics from a measured step."""
        samples, loss = as_float(fields.get("batch")), as_float(fields.get("loss"))
        self._steps.inc()
        self._samples.inc(max(0.0, samples or 0.0))
        if (seconds := step_seconds(fields)) is not None:
            self._step_s.observe(seconds)
        if loss is not None and not math.isfinite(loss):
            self._not_finite.inc()
        with self._lock:
            self._job = self._job.after_step(fields)

    def event(self, event: LoggedEvent) -> None:
        """Updates the metrics from a recorded event."""
        with self._lock:
            self._job = self._job.after(event)
        if event.topic in _STOPS:
            stopping: Any = event
            self._stop_s.labels(event.topic).observe(stopping.stop_s)


def _utf8(name: str) -> str:
    """A name that can be encoded in UTF-8: JSON may contain lone surrogates."""
    return name.encode("utf-8", "replace").decode()
