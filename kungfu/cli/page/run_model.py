"""The state of a run for its page, as plain values: first a whole document, then documents of changes; no I/O."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

from kungfu.cli.job.plan_forecast import MeasuredRun, SpeedsBySize
from kungfu.cli.page.decision_feed import DecisionFeed
from kungfu.cli.report.curves import Curves
from kungfu.cli.report.narrative import decision_words
from kungfu.event_log.events import FailedEvent
from kungfu.event_log.job import Job, JobPeer
from kungfu.event_log.numbers import as_json
from kungfu.event_log.record_follower import NewRecords
from kungfu.event_log.values import finite_number, rough_duration
from kungfu.slowness import STRAGGLER

Document = dict[str, Any]

_NEWEST = ("step", "epoch", "size", "loss", "learning_rate", "time")
# The maximum number of ended processes that are shown, and of characters in a text.
_MOST_ENDED, _LONGEST_TEXT = 8, 800
# The keys of texts that stay whole.
_WHOLE = ("plan", "plot")


class RunModel:
    """A run as a document, built from the lines of the record; returns the whole document or its changes.

    The keys of a document are ``run`` (name, state, newest figures and change), ``curves`` (see `Curves`), ``items``
    (see `DecisionFeed`), ``peers``, and the keys passed to `put`. A document of changes has only the changed keys.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.job, self._curves, self._feed = Job(), Curves(), DecisionFeed()
        self._given: Document = {}
        self._sent: dict[str, str] = {}
        self._sent_object: Document = {}
        self._speeds = SpeedsBySize()

    def add(self, new: NewRecords) -> None:
        """Adds new lines of the record."""
        for row in new.rows:
            self._curves.add(row)
            self._speeds.add(row)
            self.job = self.job.after_step(row)
        for event in new.events:
            self.job = self.job.after(event)
            self._feed.add(event, self.job)

    def put(self, **parts: Any) -> None:
        """Sets parts of the document, each under its key."""
        self._given |= parts

    def whole(self) -> Document:
        """The whole document."""
        return {**self._parts(), "curves": self._curves.all(), "items": self._feed.all()}

    def changes(self) -> Document:
        """The document of changes since the last call; empty if there are none."""
        changed = {key: value for key, value in self._parts().items() if self._is_new(key, value)}
        if (curves := self._curves.changed()) is not None:
            changed["curves"] = curves
        if items := self._feed.changed():
            changed["items"] = items
        return changed

    def measured(self) -> MeasuredRun:
        """The measurements of the job so far, for a forecast of a request's effects."""
        rate = finite_number(self.job.known.get("learning_rate"))
        return MeasuredRun(self.job, self._speeds.measured(), rate)

    def _parts(self) -> Document:
        """The parts of the document that are sent as a whole whenever they change."""
        given = dict(self._given)
        progress = asdict(self.job.progress.progress)
        seconds = progress.pop("seconds_left")
        progress["time_left"] = "" if seconds is None or self.job.ending else rough_duration(seconds)
        fraction = self.job.progress.fraction
        progress["fraction"] = None if fraction is None else round(fraction, 3)
        run = {"name": self._name, **job_summary(self.job), "progress": progress,
               "left_out": sorted(self._curves.left_out), **given.pop("run", {})}  # fmt: skip
        return {"run": run, "peers": peer_rows(self.job), **given}

    def _is_new(self, key: str, value: Any) -> bool:
        # The plan is large, and set only once.
        if key in self._given and self._given[key] is self._sent_object.get(key):
            return False
        self._sent_object[key] = value
        text = as_text(value)
        changed, self._sent[key] = self._sent.get(key) != text, text
        return changed


def job_summary(job: Job) -> Document:
    """The name, command, times, newest figures and hosts of a job."""
    started, ending = job.started, job.ending
    return {
        "job": started.job if started else "",
        "command": shlex.join(started.command) if started else "",
        "began": started.time if started else None,
        "ended": ending.time if ending else None,
        "how": "" if ending is None else ending.error if isinstance(ending, FailedEvent) else ending.reason,
        "is_failed": isinstance(ending, FailedEvent),
        "newest": newest_figures(job),
        "why": decision_words(job),
        "leader": job.leader.name if job.leader else "",
        "view": job.view.version if job.view else 0,
        "hosts": [one.name for one in job.hosts.values() if one.is_present],
    }


def newest_figures(job: Job) -> Document:
    """The newest known figures of a job: the batch in force, and the throughput of the last minute."""
    newest = {name: job.known[name] for name in _NEWEST if name in job.known}
    return newest | {"batch": job.batch, "samples_per_s": job.samples_per_s}


def peer_rows(job: Job) -> list[Document]:
    """The rows of the table of peers: members by rank, other running peers, and the last peers that have ended.

    Returns:
        For each peer its ``id``, ``rank``, ``host`` by name, ``pid``, ``state``, the time ``since`` which it has this
        state (in seconds since 1970), ``speed`` as a fraction of the median, and ``is_slow``. Unknown values are None.
    """
    running = [one for one in job.peers.values() if one.state != "ended"]
    running.sort(key=lambda one: (one.rank is None, one.rank or 0, one.id))
    ended = [one for one in job.peers.values() if one.state == "ended"][-_MOST_ENDED:]
    return [_peer_row(job, one) for one in (*running, *sorted(ended, key=lambda one: one.id))]


def _peer_row(job: Job, peer: JobPeer) -> Document:
    host, speed = job.hosts.get(peer.host), job.speeds.get(peer.id) if peer.state != "ended" else None
    how = "dismissed" if peer.is_dismissed and not peer.is_lost else peer.how
    state = f"ended: {how}" if peer.state == "ended" else peer.state
    is_slow = None if speed is None else speed < STRAGGLER
    return {"id": peer.id, "rank": peer.rank, "host": host.name if host else "", "pid": peer.pid, "state": state,
            "since": peer.since, "speed": None if speed is None else round(speed, 2), "is_slow": is_slow}  # fmt: skip


def as_text(value: Any) -> str:
    """JSON in ASCII: lone surrogates from a record are escaped, and NaN becomes a string."""
    return json.dumps(_shortened(as_json(value)), separators=(",", ":"), allow_nan=False)


def _shortened(value: Any) -> Any:
    """Shortens very long texts in a value, since such texts would fill the page; the texts of `_WHOLE` stay whole."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: entry if key in _WHOLE else _shortened(entry) for key, entry in value.items()}
    return [_shortened(entry) for entry in value] if isinstance(value, list) else value
