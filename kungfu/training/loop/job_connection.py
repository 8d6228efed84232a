"""This process's connection to its job: made by its first run, and used by the runs after it.

A program may train several times, one phase of the job after the other. Each phase has a step, policies and a state of
its own; the agent, the other peers and the all-reduce stay the same.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import tensorflow as tf

from kungfu import native
from kungfu.errors import UsageError
from kungfu.event_log.events import LateEvent
from kungfu.runtime.api import (
    Attachment,
    CheckpointSettings,
    Deadlines,
    ExitReport,
    JobMembership,
    LateRanks,
    Limits,
    Manifest,
    Membership,
    Settings,
    StandaloneMembership,
    Terms,
    find,
    make_attachment,
    read_manifest,
    read_settings,
)
from kungfu.training.state.snapshot import phase_file

_LOOK_EVERY_S = 1.0


class JobConnection:
    """The connection of a process to its job, over all its trainings.

    Args:
        settings: The settings of ``kungfu-run``; ``None`` for a program that runs alone.

    Attributes:
        phase: The phase that is under way on this peer, or was last; 0 before the first.
        several: True if another phase may follow, as after each ``fit`` of Keras.
        terms: The terms in force at the end of the last phase on this peer.
        steps: Gives the steps done.
        trained: The samples of all steps of the phases before.
        run: The name of the job; once this peer has passed through a phase, of the job that did it.
        passes: True if this peer took no part in the last phase that is over, because it was over before.
        runs: The number of runs that have begun.
        is_in_phase: True if a phase has begun on this peer and is not over.
    """

    def __init__(self, settings: Settings | None) -> None:
        self.settings = settings
        self.exits: ExitReport | None = None
        if settings is not None:
            self.exits = ExitReport(settings, steps=lambda: self.steps(), withdraw=self._withdraw)
        self.deadlines = settings.deadlines if settings else Deadlines()
        self.limits = settings.limits if settings else Limits(1, 1)
        self.peer = settings.peer if settings else 0
        self.phase, self.several = 0, False
        self.terms: Terms | None = None
        self.steps: Callable[[], int] = lambda: 0
        self.trained = 0
        self.run, self.passes = settings.job if settings else "", False
        self.runs, self.is_in_phase = 0, False

    @cached_property
    def attachment(self) -> Attachment:
        """The all-reduce of this process."""
        if self.settings is None:
            return make_attachment("solo")
        return make_attachment(self.settings.attachment, deadlines=self.deadlines, host=self.settings.host)

    @cached_property
    def membership(self) -> Membership:
        """This peer's part in the job; however the program ends, what it recorded reaches the agent first."""
        if self.settings is None:
            alone = StandaloneMembership()
            atexit.register(alone.close)
            return alone
        membership = JobMembership(
            self.settings, attachment=self.attachment, on_offer=lambda: None, write_trace=write_profiler_trace
        )
        atexit.register(membership.close)
        # The first use on a host compiles: that takes minutes where the processors are busy.
        with membership.on_the_way():
            native.prepare()
        report = partial(membership.record, "events")
        atexit.register(watch_late_peers(self.attachment.late, report, steps=lambda: self.steps()))
        return membership

    def begin_run(self, *, on_offer: Callable[[], None], steps: Callable[[], int]) -> None:
        """A run begins, whose graph posts by ``on_offer``.

        Raises:
            UsageError: There was one in this process, and the job has no phases.
        """
        if self.runs and not self.several and self.settings is not None:
            raise UsageError(
                "kf.attach() was called a second time under kungfu-run: a peer that joins runs the program from its "
                "top, and would not know which of the two the others are in; train in one loop, with all epochs, or "
                "with Keras' model.fit, of which a program may have several (docs/keras.md)"
            )
        self.runs += 1
        self.membership.begin_phase(max(1, self.phase), on_offer=on_offer)
        self.steps = steps

    def _withdraw(self) -> None:
        # Before its first run this peer has not come to the others.
        if self.runs:
            self.membership.withdraw()

    # ---- phases --------------------------------------------------------------------------------------------------

    @cached_property
    def resumed(self) -> tuple[Path, Manifest] | None:
        """The checkpoint that ``kungfu-run --resume`` names, on a peer that begins the job."""
        settings = self.settings
        if settings is None or not settings.checkpoints.resume or not settings.checkpoints.founders:
            return None
        path = find(Path(settings.checkpoints.resume))
        return None if path is None else (path, read_manifest(path))

    @property
    def checkpoints(self) -> CheckpointSettings:
        """The checkpoints of the present phase: a phase after that of a checkpoint does not begin with it."""
        if self.settings is None:
            return CheckpointSettings()
        given = self.settings.checkpoints
        is_resumed = not self.several or (self.resumed is not None and self.resumed[1].phase >= self.phase)
        # A peer that was in the phase before begins this one with the others.
        founders = max(1, given.founders) if self.membership.has_joined else given.founders
        return replace(given, resume=given.resume if is_resumed else "", founders=founders, job=self.settings.job)

    @property
    def phases_done(self) -> int:
        """The phases that are over on this peer."""
        return self.phase - self.is_in_phase

    def begin_phase(self) -> bytes | None:
        """The program comes to its next training.

        Returns:
            What that phase came to, where it is over; ``None`` if this peer is to take part.
        """
        if self.runs and not self.several:
            raise UsageError(
                "model.fit() was called under kungfu-run in a program that has called kf.attach(): a peer that joins "
                "would not know which of the two the others are in; train with one of them"
            )
        if self.is_in_phase:
            raise UsageError(
                "model.fit() was called under kungfu-run after one that an error has ended on this peer, and the "
                "program went on: the other peers may be in it still; let the error end the program"
            )
        self.several = self.is_in_phase = True
        self.phase += 1
        return self.phase_result()

    def phase_result(self) -> bytes | None:
        """The result of the present phase, if it is over in the job, or in the run that is resumed."""
        number, membership = self.phase, self.membership
        if self.resumed is not None and self.resumed[1].phase > number:
            return self._kept(number, (self.resumed[0] / phase_file(number)).read_bytes())
        # A peer that has been in a view is in all phases that follow.
        if membership.has_joined or membership.phases_over() < number:
            return None
        return self._kept(number, membership.fetch_phase(number))

    def _kept(self, number: int, content: bytes) -> bytes:
        """Others may ask this peer, and its checkpoints hold it too."""
        self.is_in_phase = False
        self.membership.past_phases.keep(number, lambda: content)
        return content

    def end_phase(self, content: Callable[[], bytes], *, terms: Terms, trained: int) -> None:
        """The phase is over on this peer; ``content`` packs what it came to."""
        self.is_in_phase = self.passes = False
        self.membership.past_phases.keep(self.phase, content)
        self.terms, self.trained = terms, trained


_connections: list[JobConnection] = []  # that of this process, once it is one of a job


def connect() -> JobConnection:
    """The connection of this process to its job; of a program that runs alone a new one each time."""
    settings = read_settings()
    if settings is None:
        return JobConnection(None)
    if not _connections or _connections[0].settings != settings:
        _connections[:] = [JobConnection(settings)]
    return _connections[0]


def watch_late_peers(
    late: Callable[[], LateRanks | None], report: Callable[[LateEvent], None], *, steps: Callable[[], int]
) -> Callable[[], None]:
    """Reports peers that are late while the others still wait, before the deadline ends the wait.

    A thread asks the attachment every second, which gives each wait once, when it has lasted long enough to be
    reported. The thread is a daemon, so it never keeps the program from ending.

    Args:
        late: The attachment's: the ranks that are waited for, ``None`` if none is.
        report: Receives the event.
        steps: Gives the number of steps done so far.

    Returns:
        Ends the thread, after a look that is under way; nothing is reported from then on.
    """
    stopped = threading.Event()

    def look() -> None:
        while not stopped.wait(_LOOK_EVERY_S):
            if (found := late()) is not None:
                waited_s = round(found.waited_s, 3)
                report(LateEvent(ranks=tuple(found.ranks), where=found.tag, step=steps(), waited_s=waited_s))

    thread = threading.Thread(target=look, name="kungfu-late-peers", daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        thread.join()

    return stop


def write_profiler_trace(seconds: float, folder: str) -> str:
    """Traces this process by TensorFlow's profiler, for TensorBoard; called beside the thread that trains.

    Args:
        seconds: The length of the profile.
        folder: The folder to write to; it is made if it is missing.

    Returns:
        The error; empty if the trace is written.

    Cost:
        None but while it traces: then some microseconds for each op of a step; the files are written afterwards.
    """
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tf.profiler.experimental.start(folder, options=options)
        time.sleep(seconds)
        tf.profiler.experimental.stop()
    # The program traces itself at the moment, by a callback say; or the folder cannot be written.
    except (tf.errors.OpError, OSError) as error:
        return str(error)
    # The profiler says nothing where it cannot write.
    return "" if any(Path(folder).rglob("*.xplane.pb")) else f"nothing was written in {folder}"
