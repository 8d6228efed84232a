"""Writes a run's record to MLflow: one run for a job, with parameters, metrics by step, and decisions.

During a job, a separate process follows the record's files, so that no peer or agent waits for the tracking server.
Whatever is lost, the job keeps one run in MLflow: the run has the job's name as a tag, and if another host leads the
job from now on, the process of that host finds the run by this tag and continues it.

| in MLflow | content |
| --- | --- |
| metrics | the numbers of steps and of events, under the names of `kungfu.cli.export.plotted_numbers` |
| parameters | the program, the peers at the start and their limits, the policies, the attachment |
| tag ``kungfu.job`` | the name of the job |
| tag ``kungfu.change`` | the newest decision, refusal or change of the membership, in the words of ``kungfu why`` |
| artifacts ``events.jsonl``, ``why.txt`` | all decisions and changes, at the end of the job |
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from kungfu import __version__
from kungfu.cli.export.growing_export import LOOK_EVERY_S, export_growing
from kungfu.cli.export.mlflow_target import MlflowTarget
from kungfu.cli.export.plotted_numbers import NumberReader, PlottedNumbers
from kungfu.cli.export.side_process import job_ends, run_beside
from kungfu.cli.report.reader import read_events
from kungfu.cli.why import why_text
from kungfu.errors import UsageError
from kungfu.event_log.events import FailedEvent
from kungfu.event_log.job import Job
from kungfu.event_log.record_follower import JobWatcher, NewRecords
from kungfu.runtime.core.failure import NO_QUORUM_CODE
from kungfu.runtime.job_api.job_file import read_job_file, state_of

# MLflow's limits: 1,000 metrics and tags in a call, 500 characters in a value (6,000 from 2.8 on), 250 in a name.
_MOST_METRICS, _LONGEST_VALUE, _LONGEST_NAME = 900, 500, 250
_BAD_CHARACTERS = re.compile(r"[^\w\- ]")
# Seconds that the processes of two hosts may write twice: their steps may have been measured by different clocks.
_OVERLAP_S = 60.0
_CHANGES = ("decision", "refusal", "rescale", "recovery")
# A call must fail soon, since it is repeated, and since the process ends soon after the job.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
}  # fmt: skip


class MetricBatch(NamedTuple):
    """Numbers and tags for one call; ``until`` is the time of the newest step, if a step is among the numbers."""

    lines: tuple[PlottedNumbers, ...] = ()
    change: str = ""
    until: float | None = None


class BatchMaker:
    """Makes batches from the lines of the record until another host leads the job; follows the job.

    Args:
        job: The job at the start; ``host`` writes its run.
    """

    def __init__(self, job: Job, host: int | str | None) -> None:
        self.job, self._host, self._numbers, self._has_begun = Job(), host, NumberReader(), False
        self._term = job.leader.term if job.leader else 0

    @property
    def is_deposed(self) -> bool:
        """True if another host has become the leader, and writes the run from now on."""
        leader = self.job.leader
        return leader is not None and self._host not in (None, leader.host, leader.name) and leader.term > self._term

    def made_of(self, new: NewRecords) -> Iterator[MetricBatch]:
        """The batches for new lines of the record; the first batch, which creates the run, is empty."""
        steps = [line for row in new.rows if (line := self._numbers.of_row(row)) is not None]
        markers, change = list[PlottedNumbers](), ""
        for event in new.events:
            self.job = self.job.after(event)
            markers.append(self._numbers.of_event(event))
            change = event.headline() if event.topic in _CHANGES else change
        if self.is_deposed:
            return
        if not self._has_begun:
            self._has_begun = True
            yield MetricBatch()
        for lines in _parted(steps):
            yield MetricBatch(lines, until=max(line.at for line in lines))
        for lines in _parted(markers):
            yield MetricBatch(lines)
        if change:
            yield MetricBatch(change=change)


def _parted(lines: Sequence[PlottedNumbers]) -> Iterator[tuple[PlottedNumbers, ...]]:
    """The lines in parts with at most as many numbers as MLflow accepts in a call."""
    part, count = list[PlottedNumbers](), 0
    for line in lines:
        # A step with more signals than MLflow takes at once is written in several calls.
        for begin in range(0, len(line.numbers), _MOST_METRICS):
            numbers = dict([*line.numbers.items()][begin : begin + _MOST_METRICS])
            if count + len(numbers) > _MOST_METRICS:
                yield (*part,)
                part, count = [], 0
            part.append(line._replace(numbers=numbers))
            count += len(numbers)
    if part:
        yield (*part,)


class MlflowRun:
    """The run of one job in MLflow; created with the first batch, or found if it exists."""

    def __init__(self, job: Job, record: Path, target: MlflowTarget, *, report: Callable[[str], None]) -> None:
        self._job, self._record, self._target, self._report = job, record, target, report
        self._client: Any = None
        self._id, self._after_s = "", -math.inf

    def write(self, batch: MetricBatch) -> None:
        """Writes a batch; raises ``OSError`` if the server does not take it."""
        with self._failing():
            if not self._id:
                self._begin()
            entities = importlib.import_module("mlflow.entities")
            metrics = [
                entities.Metric(_metric_name(name), value, _milliseconds(line.at), line.step)
                for line in batch.lines if line.at > self._after_s for name, value in line.numbers.items()
            ]  # fmt: skip
            tags = {"kungfu.change": batch.change} if batch.change else {}
            if metrics and batch.until is not None:
                tags["kungfu.until"] = str(batch.until)
            if metrics or tags:
                named = [entities.RunTag(name, _cut(value)) for name, value in tags.items()]
                self._client.log_batch(self._id, metrics=metrics, tags=named)

    def write_decisions(self) -> None:
        """Writes the decisions as artifacts; raises ``OSError`` on failure."""
        with self._failing():
            self._client.log_text(self._id, why_text(read_events(self._record).events), "why.txt")
            self._client.log_artifact(self._id, str(self._record / "events.jsonl"))

    def end(self, job: Job) -> None:
        """Writes the end of the run, unless the job continues; raises ``OSError`` on failure."""
        if (status := _status(job, self._record)) is None:
            return
        ended = (job.ending.time if job.ending else None) or job.last_at or 0.0
        with self._failing():
            self._client.set_terminated(self._id, status=status, end_time=_milliseconds(ended))

    def _begin(self) -> None:
        """Finds or creates the run, and writes its parameters."""
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=self._target.uri)
        started, name = self._job.started, self._record.absolute().name
        assert started is not None
        job = self._job.names[0]  # a job that is started again continues its run
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or self._experiment()
        found = self._client.search_runs([experiment], filter_string=f"tags.`kungfu.job` = '{job}'")
        if found:
            run = found[0]
            self._after_s = float(run.data.tags.get("kungfu.until", "-inf")) - _OVERLAP_S
        else:
            tags = {
                "kungfu.job": job, "kungfu.version": __version__,
                "kungfu.record": _cut(str(self._record.absolute())), "mlflow.user": os.environ.get("USER", ""),
                "mlflow.source.name": _cut(" ".join(started.command)),
            }  # fmt: skip
            run = self._client.create_run(
                experiment, start_time=_milliseconds(started.time or 0.0), tags=tags, run_name=name
            )
        if not run.data.params:
            self._client.log_batch(run.info.run_id, params=self._parameters())
        self._id = run.info.run_id
        self._report(f"the job is run {name} ({self._id}) at {self._target}")

    def _parameters(self) -> list[Any]:
        started = self._job.started
        assert started is not None
        values = {
            "program": " ".join(started.command), "peers": str(started.size), "attachment": started.attachment,
            **self._target.parameters,
        }  # fmt: skip
        param = importlib.import_module("mlflow.entities").Param
        return [param(name, _cut(value)) for name, value in values.items() if value]

    def _experiment(self) -> str:
        """The id of the experiment that the environment names, created if needed; else MLflow's default experiment."""
        if (name := os.environ.get("MLFLOW_EXPERIMENT_NAME")) is None:
            return "0"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Raises ``OSError`` for any error: those of MLflow, its server and its databases have no common class."""
        try:
            yield
        except Exception as error:
            said = " ".join(str(error).split()).replace(self._target.uri, str(self._target))
            raise OSError(errno.EIO, f"{type(error).__name__}: {said[:200]}") from error


def _status(job: Job, record: Path) -> Literal["FINISHED", "FAILED", "KILLED"] | None:
    """The status of the run of a job; ``None`` if the job continues, here or on other hosts."""
    if isinstance(job.ending, FailedEvent):
        return None if job.ending.code == NO_QUORUM_CODE else "FAILED"
    try:
        file = read_job_file(record)
    # The record was copied without the job file.
    except UsageError:
        return "FINISHED" if job.ending else None
    if job.ending:
        return "KILLED" if file.code else "FINISHED"
    return "KILLED" if state_of(file) == "over" and len(job.hosts) <= 1 else None


def _metric_name(name: str) -> str:
    """A name that MLflow accepts: a group, and after the slash no character with a meaning in paths.

    >>> [_metric_name(name) for name in ("job/loss", "signals/a/../b", "signals/")]
    ['job/loss', 'signals/a____b', 'signals/_']
    """
    group, _, rest = name.partition("/")
    return f"{group}/{_BAD_CHARACTERS.sub('_', rest) or '_'}"[:_LONGEST_NAME]


def _milliseconds(at: float) -> int:
    """A time as MLflow takes it, also if a damaged line has an impossible one."""
    return round(1000 * min(max(0.0, at), 1e12))


def _cut(value: str) -> str:
    """A value that MLflow accepts."""
    value = value.encode("utf-8", "replace").decode()
    return value if len(value) <= _LONGEST_VALUE else f"{value[: _LONGEST_VALUE - 1]}…"


def export_record(
    record: Path, target: MlflowTarget, *, is_over: Callable[[float], bool], report: Callable[[str], None]
) -> bool:
    """Writes a record to MLflow, including lines that are added later, until the run is over.

    Args:
        is_over: Waits up to the given seconds for the end of the run, and returns True at the end.

    Returns:
        True if everything was written that this host has to write.

    Raises:
        UsageError: The record is of another version, or cannot be read.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    job = _await_start(record, target.host, is_over)
    if job is None:
        if target.host is None:
            raise UsageError(f"{record}: the record has no start of a job; give the folder of a run that has started")
        return True
    maker, run = BatchMaker(job, target.host), MlflowRun(job, record, target, report=report)
    later = f"kungfu mlflow {record} {target}"
    is_written = export_growing(
        record, maker.made_of, run.write, target=str(target), later=later, is_over=is_over, report=report
    )
    # Another host writes the end of the run, or nothing could be written.
    if not is_written or maker.is_deposed:
        return is_written
    for part, write in (("the decisions", run.write_decisions), ("the end of the run", lambda: run.end(maker.job))):
        try:
            write()
        except OSError as error:
            report(f"{target} lacks {part} ({error.strerror}); {later} writes them")
            is_written = False
    return is_written


def _await_start(record: Path, host: int | str | None, is_over: Callable[[float], bool]) -> Job | None:
    """The job, once it has started and ``host`` has begun to write its MLflow run; ``None`` if that does not happen."""
    watcher, ending = JobWatcher(record), False
    while (job := watcher.look()).started is None or not (host is None or job.is_led_by(host)):
        if ending:
            return None
        ending = is_over(LOOK_EVERY_S)
    return job


def _export_quietly(record: Path, target: MlflowTarget, report: Callable[[str], None]) -> None:
    """Writes a record until standard input closes; what MLflow itself prints and logs is left out."""
    logging.disable()
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        export_record(record, target, is_over=job_ends, report=report)


if __name__ == "__main__":
    record, target = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=MlflowTarget)
    sys.exit(run_beside(lambda report: _export_quietly(record, target, report)))
