"""``kungfu-run --on-event COMMAND``: runs a command for each event of a job, such as one that posts a message.

A separate process follows the record and runs the command for one event at a time. So a slow or failing command delays
neither the job nor the record; it delays only the commands for later events.
"""

from __future__ import annotations

import difflib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, get_args

import msgspec

from kungfu.cli.export.growing_export import export_growing
from kungfu.cli.export.side_process import SideProcess, job_ends, outer_environment, run_beside
from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import AnyEvent, LoggedEvent
from kungfu.event_log.job import Job
from kungfu.event_log.logged_event import Topic
from kungfu.event_log.record_follower import NewRecords
from kungfu.event_log.values import counted

_NAME = "on-event"
ALL = "all"
# Neither every step of a policy nor every part of a stop: the events of which a person wants to know at once.
USUAL_KINDS = (
    "started", "restarted", "rescale", "recovery", "refusal", "lost", "missing", "host noticed", "host left",
    "host lost", "head", "failed", "trouble", "checkpoint", "ended",
)  # fmt: skip
# Seconds that a command may take, and seconds after the end of the job for the commands of the last events.
_LIMIT_S, _END_WITHIN_S = 60.0, 25.0
_KILL_AFTER_S = 30.0
# The seconds before an election whose events the new leader hands over too, and the maximum number of these events.
_HANDED_OVER_S, _MOST_MISSED = 10.0, 100
# The last bytes of the output in which a remark finds its line, and the longest text in a variable.
_LAST_BYTES, _LONGEST_TEXT = 4096, 8000


@dataclass(frozen=True)
class EventCommand:
    """A command for the events of a job.

    Args:
        command: The command line, for ``sh``.
        kinds: The kinds or topics of its events; empty for all events.
        host: The index of this host, or its name if it joins a job. Of several hosts, only the one that leads the job
            runs the command.
        since: The start of kungfu-run, in seconds since 1970: earlier events of the record are of the run before.
    """

    command: str
    kinds: tuple[str, ...]
    host: int | str = 0
    since: float = 0.0


def parse_event_command(command: str | None, kinds: str | None, *, host: int | str) -> EventCommand | None:
    """The command of a command line; ``None`` if there is none.

    Raises:
        UsageError: The shell cannot parse the command, or a kind of event does not exist.

    >>> parse_event_command("cat", "rescale, peer ended", host=0).kinds
    ('rescale', 'peer ended')
    """
    if command is None:
        if kinds is not None:
            raise UsageError(f"--on-event-kinds {kinds}: selects events for a command; give --on-event COMMAND too")
        return None
    checked = subprocess.run(["sh", "-n", "-c", command], capture_output=True, text=True, check=False)
    if not command.strip() or checked.returncode:
        why = checked.stderr.strip() or "it is empty"
        raise UsageError(f"--on-event {command!r}: sh cannot run it ({why}); quote it as one argument of kungfu-run")
    names = USUAL_KINDS if kinds is None else tuple(filter(None, (name.strip() for name in kinds.split(","))))
    for name in names or ("",):
        if name not in (known := known_kinds()):
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"--on-event-kinds {kinds}: no event is of the kind {name!r}; {meant}")
    return EventCommand(command, () if ALL in names else names, host, since=time.time())


def known_kinds() -> tuple[str, ...]:
    """The names that select events: ``all``, the topics, and the kinds of events as in ``events.jsonl``."""
    kinds = (str(one.__struct_config__.tag) for one in get_args(AnyEvent))
    return ALL, *sorted({*get_args(Topic), *kinds} - {"record", "unrecorded"})


def event_command_process(record: Path, asked: EventCommand, *, report: Callable[[str], None]) -> SideProcess:
    """A side process that runs a command for the events of a job; a context manager."""
    arguments = (str(record.absolute()), msgspec.json.encode(asked).decode())
    return SideProcess(
        _NAME, __name__, arguments, subject="the command for events", end_within_s=_KILL_AFTER_S, report=report,
        late=f"the command for events did not end within {_KILL_AFTER_S:.0f} s",
    )  # fmt: skip


# ---- inside the process ----------------------------------------------------------------------------------------------


class EventSelector:
    """Selects the events for a command while the agent of this host leads the job; follows the job."""

    def __init__(self, kinds: Collection[str], host: int | str, *, since: float = 0.0) -> None:
        self._kinds, self._host, self._since, self.job = kinds, host, since, Job()
        self._missed = deque[LoggedEvent](maxlen=_MOST_MISSED)

    def made_of(self, new: NewRecords) -> Iterator[LoggedEvent]:
        """The events for the command among new lines of the record."""
        for event in new.events:
            led, self.job = self.job.is_led_by(self._host), self.job.after(event)
            # The job was started again, and the command has run for this event.
            if event.time is not None and event.time < self._since:
                continue
            leads = self.job.is_led_by(self._host)
            # The previous leader may have been lost before it ran the command for its last events.
            if leads and not led:
                yield from (one for one in self._missed if (one.time or 0.0) > (event.time or 0.0) - _HANDED_OVER_S)
                self._missed.clear()
            if not self._kinds or event.kind in self._kinds or event.topic in self._kinds:
                if leads:
                    yield event
                else:
                    self._missed.append(event)


class EndDeadline:
    """The end of a job, and the time until which commands may run afterwards.

    Args:
        is_over: Waits up to the given seconds for the end of the job, and returns True at the end.
        within_s: The seconds after the end in which commands may run.

    Attributes:
        until: The time by the monotonic clock; infinite before the end.
    """

    def __init__(self, is_over: Callable[[float], bool], within_s: float = _END_WITHIN_S) -> None:
        self._is_over, self.within_s, self.until = is_over, within_s, math.inf

    def is_over(self, timeout_s: float) -> bool:
        """Waits for the end of the job; at the end, sets the deadline."""
        if (over := self._is_over(timeout_s)) and self.until == math.inf:
            self.until = time.monotonic() + self.within_s
        return over


class CommandRunner:
    """Runs a command for events, one at a time; reports the first failure, and counts the others.

    Args:
        limit_s: The maximum number of seconds of a command.
    """

    def __init__(
        self, command: str, variables: Callable[[LoggedEvent], Mapping[str, str]], end: EndDeadline, *,
        report: Callable[[str], None], limit_s: float,
    ) -> None:  # fmt: skip
        self._command, self._variables, self._end = command, variables, end
        self._report, self._limit_s = report, limit_s
        self._counts: Counter[Literal["done", "failed", "left out"]] = Counter()

    def run(self, event: LoggedEvent) -> None:
        """Runs the command for an event, unless the job ended too long ago."""
        if time.monotonic() > self._end.until:
            self._counts["left out"] += 1
            return
        self._counts["done"] += 1
        if why := self._failure(event):
            self._counts["failed"] += 1
            if self._counts["failed"] == 1:
                said = f"the command failed for an event {event.kind!r} ({why})"
                self._report(f"{said}; training continues, and further failures are counted at the end")

    def report_counts(self) -> None:
        """Reports how many events were left out, and for how many the command failed."""
        done, failed, left_out = self._counts["done"], self._counts["failed"], self._counts["left out"]
        if left_out:
            within = f"did not fit into the {self._end.within_s:.0f} s after the end of the job"
            self._report(f"the command did not run for the last {counted(left_out, 'event')}, which {within}")
        if failed:
            self._report(f"the command failed for {failed} of {counted(done, 'event')}")

    def _failure(self, event: LoggedEvent) -> str:
        """Runs the command for an event; returns the reason if the command failed."""
        # Files, since a command may read nothing, print without end, or leave processes behind that hold a pipe open.
        try:
            with tempfile.TemporaryFile() as line, tempfile.TemporaryFile() as output:
                line.write(f"{event_to_line(event)}\n".encode())
                line.seek(0)
                process = subprocess.Popen(
                    ["sh", "-c", self._command], stdin=line, stdout=output, stderr=output,
                    env={**outer_environment(), **self._variables(event)}, process_group=0,
                )  # fmt: skip
                took_s, last = self._wait_for(process), _last_line(output)
        # No memory, no process or no room for the files is left.
        except OSError as error:
            return str(error)
        said = f": {last}" if last else ""
        if took_s is not None:
            return f"ended after {took_s:.0f} s{said}"
        return f"exit code {process.returncode}{said}" if process.returncode else ""

    def _wait_for(self, process: subprocess.Popen[bytes]) -> float | None:
        """Waits for a command; at its time limit, ends it with all its processes, and returns the time it took."""
        began = time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                return None
            self._end.is_over(0.0)
            if (now := time.monotonic()) > min(began + self._limit_s, self._end.until):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return now - began


def _last_line(output: IO[bytes]) -> str:
    """The last line that a command printed, at most 200 characters."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]


def run_for_events(
    asked: EventCommand, record: Path, end: EndDeadline, *, report: Callable[[str], None], limit_s: float = _LIMIT_S
) -> None:
    """Runs a command for the events of a record until the job is over.

    Raises ``UsageError`` if the record cannot be read."""
    selector = EventSelector(asked.kinds, asked.host, since=asked.since)

    def variables(event: LoggedEvent) -> Mapping[str, str]:
        """The environment variables that describe an event in the words of ``kungfu why``."""
        text = "\n".join([event.headline() or event.one_line() or event.kind, *event.details()])
        return {
            "KUNGFU_EVENT_TEXT": text.encode("utf-8", "replace").decode().replace("\0", " ")[:_LONGEST_TEXT],
            "KUNGFU_EVENT_JOB": selector.job.started.job if selector.job.started else "",
            "KUNGFU_EVENT_FOLDER": str(record),
        }

    runner = CommandRunner(asked.command, variables, end, report=report, limit_s=limit_s)
    export_growing(
        record, selector.made_of, runner.run, target="the command", later="kungfu why", is_over=end.is_over,
        report=report,
    )  # fmt: skip
    runner.report_counts()


if __name__ == "__main__":
    record, asked = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=EventCommand)
    sys.exit(run_beside(lambda report: run_for_events(asked, record, EndDeadline(job_ends), report=report)))
