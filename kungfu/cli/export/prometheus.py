"""A job as metrics of Prometheus: counters and histograms of what happened, gauges of what is now.

Names and units follow Prometheus' conventions: base units at the end of a name (``_seconds``, ``_bytes``, ``_ratio``)
and ``_total`` for counters. What is not known has no sample: no loss is not a loss of 0.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from kungfu.event_log.events import (
    CheckpointEvent,
    DecisionEvent,
    LoggedEvent,
    RecoveredEvent,
    RefusedEvent,
    RequestEvent,
    RescaleEvent,
    RulesEvent,
)
from kungfu.event_log.job import Job
from kungfu.event_log.numbers import as_float, step_seconds
from kungfu.runtime.core.requests.request_log import RequestState

# Fields of a step that have a gauge of their own, and those that are no gauge; every other number is a named signal.
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
_GAUGES: Mapping[str, str] = {
    **dict(_OF_A_STEP.values()),
    "kungfu_peer_processes": "Processes of peers that run, those that are getting ready among them.",
    "kungfu_hosts": "Hosts of the job.",
    "kungfu_start_timestamp_seconds": "When the job started, in seconds since 1970.",
    "kungfu_checkpoint_size_bytes": "Size of the newest checkpoint.",
    "kungfu_last_checkpoint_timestamp_seconds": "When the newest checkpoint was written, in seconds since 1970.",
}
_MOST_RULES = 50
# What a command line begins with that changes the size, or who is there.
_COMMANDS = tuple(f"kungfu {name}" for name in ("resize", "scale-out", "scale-in", "migrate", "profile"))
# From a small step of a processor to one that takes minutes; a stop takes from some milliseconds to a deadline.
_STEP_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_STOP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


def _of_job(job: Job) -> Iterator[tuple[str, float]]:
    """The gauges of a job that no step has; nothing before its first event."""
    if not job.counts:
        return
    if job.started is not None:
        yield "kungfu_start_timestamp_seconds", job.started.time or math.nan
    if job.view is not None:
        yield "kungfu_peers", job.size
    if job.checkpoint is not None:
        yield "kungfu_last_checkpoint_timestamp_seconds", job.checkpoint.time or math.nan
        yield "kungfu_checkpoint_size_bytes", job.checkpoint.size_bytes or math.nan
    yield "kungfu_peer_processes", sum(one.state != "ended" for one in job.peers.values())
    yield "kungfu_hosts", len(job.hosts_present)


def _labelled(name: str, meaning: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for key, value in values.items():
        family.add_metric([_utf8(key)], value)
    return family


class PrometheusMetrics(Collector):
    """The metrics of a job, as one host's record tells them; takes what is recorded, from many threads.

    Attributes:
        registry: What a server of metrics collects from.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock, self._job = threading.Lock(), Job()
        self.registry.register(self)
        self._rules = set[str]()
        self._steps = self._counter("steps", "Steps that were done, those that were done again counted again.")
        self._samples = self._counter("samples", "Samples that were trained on.")
        self._not_finite = self._counter("not_finite_steps", "Steps whose loss was NaN or infinite.")
        self._decisions = self._counter("decisions", "Sizes that a rule or a command asked for.", "rule")
        self._rescales = self._counter("rescales", "Changes of the membership, but for losses and their replacements.")
        self._recoveries = self._counter("recoveries", "Losses of peers that the others survived.")
        self._lost = self._counter("lost_peers", "Peers that were lost.")
        self._refusals = self._counter("refusals", "Changes whose peers could not be had.")
        self._requests = self._counter("requests", "Requests from outside, by what they came to.", "state")
        self._checkpoints = self._counter("checkpoints", "Checkpoints, by outcome.", "outcome")
        meaning = "How long a step took, from the end of the one before."
        self._step_s = Histogram("kungfu_step_duration_seconds", meaning, buckets=_STEP_S, registry=self.registry)
        meaning = "For how long training stood still, by cause."
        self._stop_s = Histogram(
            "kungfu_stop_duration_seconds", meaning, ["cause"], buckets=_STOP_S, registry=self.registry
        )
        # What has not happened is 0, and not missing: the first time counts in a rate, too.
        for family, labels in (
            (self._stop_s, ("rescale", "recovery", "checkpoint")),
            (self._decisions, _COMMANDS),
            (self._requests, get_args(RequestState)),
            (self._checkpoints, ("written", "failed")),
        ):
            for label in labels:
                family.labels(label)

    def collect(self) -> Iterator[Metric]:
        """The job now and the newest known values of its steps, as gauges."""
        job = self._job
        values = {_OF_A_STEP[name][0]: value for name, value in job.known.items() if name in _OF_A_STEP}
        signals = {name: value for name, value in job.known.items() if name not in _OF_A_STEP}
        if job.started is not None and job.started.job:
            yield InfoMetricFamily("kungfu_job", "The job.", value={"job_id": _utf8(job.started.job)})
        for name, value in {**values, **dict(_of_job(job))}.items():
            yield GaugeMetricFamily(name, _GAUGES[name], value=value)
        yield _labelled("kungfu_signal", "Newest value of a named signal of the policies.", "signal", signals)
        meaning = "Speed of a peer as a fraction of the median peer's, where a policy measures it."
        speeds = {str(peer): speed for peer, speed in job.speeds.items()}
        yield _labelled("kungfu_peer_speed_ratio", meaning, "peer", speeds)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"kungfu_{name}", meaning, labels, registry=self.registry)

    def status(self, fields: Mapping[str, Any]) -> None:
        """A step was measured."""
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
        """Something was recorded."""
        with self._lock:
            replacements, job = self._job.replacements, self._job.after(event)
            self._job = job
        match event:
            case RulesEvent():
                for rule in event.rules:
                    self._decisions.labels(self._rule_label(rule))
            case DecisionEvent():
                self._decisions.labels(self._rule_label(event.rule)).inc()
            case RescaleEvent():
                self._rescales.inc(job.replacements == replacements)
                self._stop_s.labels("rescale").observe(event.stop_s)
            case RecoveredEvent():
                self._recoveries.inc()
                self._lost.inc(len(event.lost))
                self._stop_s.labels("recovery").observe(event.stop_s)
            case RefusedEvent():
                self._refusals.inc()
            case RequestEvent():
                self._requests.labels(event.state).inc()
            case CheckpointEvent():
                self._checkpoints.labels("failed" if event.error else "written").inc()
                self._stop_s.labels("checkpoint").observe(event.stop_s)

    def _rule_label(self, rule: str) -> str:
        """The label of a rule; of a command its name, without peers and sizes: labels must stay few."""
        command = " ".join(rule.split(" ")[:2])
        if command in _COMMANDS:
            return command
        if len(self._rules) < _MOST_RULES:
            self._rules.add(rule)
        return _utf8(rule) if rule in self._rules else "others"


def _utf8(name: str) -> str:
    """A name as it can be sent: JSON may hold halves of characters."""
    return name.encode("utf-8", "replace").decode()
