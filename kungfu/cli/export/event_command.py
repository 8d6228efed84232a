"""``kungfu-run --on-event COMMAND``: runs a command for each event of a job, such as one that posts a message.

A separate process follows the record and runs the command for one event at a time. So a slow or failing command delays
neither the job nor the record; it delays only the commands for later events.
"""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, get_args

import msgspec

from kungfu.cli.export.growing_export import export_growing
from kungfu.cli.export.side_process import SideProcess, begin_beside, job_ends, outer_environment
from kungfu.errors import KungfuError, UsageError
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
    "started", "rescale", "recovery", "refusal", "lost", "missing", "host lost", "failed", "trouble", "host", "checkpoint",
    "ended",
)  # fmt: skip
# Seconds that a command may take, and seconds after the end of the job for the commands of the last events.
_LIMIT_S, _END_WITHIN_S = 60.0, 25.0
_KILL_AFTER_S = 30.0
# The last bytes of the output in which a remark finds its line, and the longest text in a variable.
_LAST_BYTES, _LONGEST_TEXT = 4096, 8000


@dataclass(frozen=True)
class EventCommand:
    """A command for the events of a job.

    Args:
        command: The command line, for ``sh``.
        kinds: The kinds or topics of its events; empty for all events.
        host: The index of this host. Of several hosts, only the one that leads the job runs the command.
    """

    command: str
    kinds: tuple[str, ...]
    host: int = 0


def parse_event_command(command: str | None, kinds: str | None, *, host: int) -> EventCommand | None:
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
    return EventCommand(command, () if ALL in names else names, host)


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


class EventCommandRunner:
    """Runs a command for the events of a record, one at a time; reports the first failure, and the number at the end.

    Args:
        asked: The command, and its events.
        record: The folder of the record.
        is_over: Waits up to the given seconds for the end of the job, and returns True at the end.
        report: Called with remarks.
        limit_s: The maximum number of seconds of a command.
        end_within_s: The seconds after the end of the job in which commands may run.
    """

    def __init__(
        self, asked: EventCommand, record: Path, *, is_over: Callable[[float], bool], report: Callable[[str], None],
        limit_s: float = _LIMIT_S, end_within_s: float = _END_WITHIN_S,
    ) -> None:  # fmt: skip
        self._asked, self._record, self._report = asked, record, report
        self._is_over, self._limit_s, self._end_within_s = is_over, limit_s, end_within_s
        self._job, self._until = Job(), float("inf")
        self._done = self._failed = self._left_out = 0

    def run(self) -> None:
        """Runs the command for each event until the job is over; raises ``UsageError`` for an unsupported record."""
        export_growing(
            self._record, self._events_in, self._run_for, target="the command", later="kungfu why",
            is_over=self.is_over, report=self._report,
        )  # fmt: skip
        if self._left_out:
            within = f"did not fit into the {self._end_within_s:.0f} s after the end of the job"
            self._report(f"the command did not run for the last {counted(self._left_out, 'event')}, which {within}")
        if self._failed:
            self._report(f"the command failed for {self._failed} of {counted(self._done, 'event')}")

    def is_over(self, timeout_s: float) -> bool:
        """Waits for the end of the job, and then sets the time limit of the last commands."""
        if (over := self._is_over(timeout_s)) and self._until == float("inf"):
            self._until = time.monotonic() + self._end_within_s
        return over

    def _events_in(self, new: NewRecords) -> Iterator[LoggedEvent]:
        """The new events for the command: the selected ones, while the agent of this host leads the job."""
        kinds = self._asked.kinds
        for event in new.events:
            self._job = self._job.after(event)
            if (not kinds or event.kind in kinds or event.topic in kinds) and self._job.is_led_by(self._asked.host):
                yield event

    def _run_for(self, event: LoggedEvent) -> None:
        if time.monotonic() > self._until:
            self._left_out += 1
            return
        self._done += 1
        why = self._failure(event)
        if not why:
            return
        self._failed += 1
        if self._failed == 1:
            said = f"the command failed for an event {event.kind!r} ({why})"
            self._report(f"{said}; training continues, and further failures are counted at the end")

    def _failure(self, event: LoggedEvent) -> str:
        """Runs the command for an event; returns the reason if the command failed."""
        # Files, since a command may read nothing, print without end, or leave processes behind that hold a pipe open.
        try:
            with tempfile.TemporaryFile() as line, tempfile.TemporaryFile() as output:
                line.write(f"{event_to_line(event)}\n".encode())
                line.seek(0)
                process = subprocess.Popen(
                    ["sh", "-c", self._asked.command], stdin=line, stdout=output, stderr=output,
                    env={**outer_environment(), **self._variables(event)}, process_group=0,
                )  # fmt: skip
                limit_s, last = self._wait_for(process), _last_line(output)
        # No memory, no process or no room for the files is left.
        except OSError as error:
            return str(error)
        if limit_s is not None:
            return f"ended after {limit_s:.0f} s" + (f": {last}" if last else "")
        return f"exit code {process.returncode}" + (f": {last}" if last else "") if process.returncode else ""

    def _variables(self, event: LoggedEvent) -> Mapping[str, str]:
        """The environment variables that describe an event in the words of ``kungfu why``."""
        text = "\n".join([event.headline() or event.one_line() or event.kind, *event.details()])
        return {
            "KUNGFU_EVENT_TEXT": text.encode("utf-8", "replace").decode().replace("\0", " ")[:_LONGEST_TEXT],
            "KUNGFU_EVENT_JOB": self._job.started.job if self._job.started else "",
            "KUNGFU_EVENT_FOLDER": str(self._record),
        }

    def _wait_for(self, process: subprocess.Popen[bytes]) -> float | None:
        """Waits for a command, and ends it with all its processes at its time limit; returns the limit if so."""
        began = time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                return None
            self.is_over(0.0)
            if (now := time.monotonic()) > min(began + self._limit_s, self._until):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return now - began


def _last_line(output: IO[bytes]) -> str:
    """The last line that a command printed, at most 200 characters."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]


def main(record: Path, asked: EventCommand) -> int:
    """Runs the command until standard input closes; prints remarks on standard output."""
    begin_beside()
    try:
        EventCommandRunner(asked, record, is_over=job_ends, report=lambda text: print(text, flush=True)).run()
    except KungfuError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=EventCommand)))
