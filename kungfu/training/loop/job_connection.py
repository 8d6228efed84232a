"""This process's connection to its job: the first run makes the connection, and later runs reuse it.

A program may train several times, one phase of the job after the other. Each phase has a separate step, policies and
state; the agent, the other peers and the all-reduce stay the same.
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
    """The connection of a process to its job, over all its training runs.

    Args:
        settings: The settings of ``kungfu-run``; ``None`` for a program that runs alone.

    Attributes:
        phase: The number of the phase under way on this peer, or of the last phase; 0 before the first phase.
        several: True if another phase may follow, as after each ``fit`` of Keras.
        terms: The values, such as the batch size, in force at the end of the last phase on this peer.
        trained: The number of samples in all steps of earlier phases.
        run: The name of the job; after a phase on this peer, the name of the job that ran the phase.
        passes: True if this peer took no part in the last finished phase, because the phase had already ended.
        is_in_phase: True while a phase is under way on this peer.
    """

    def __init__(self, settings: Settings | None) -> None:
        self.settings = settings
        self.exits: ExitReport | None = None
        if settings is not None:
            self.exits = ExitReport(settings, steps=lambda: self.steps(), withdraw=self._withdraw)
        self.deadlines = settings.deadlines if settings else Deadlines()
        self.limits = settings.limits if settings else Limits(1, 1)
        self.peer = settings.peer if settings else 0
        # The number since the job was started last: the first of its peers continues as peer 0 of the checkpoint did.
        self.number = settings.peer - settings.first_peer if settings else 0
        self.phase, self.several = 0, False
        self.terms: Terms | None = None
        self.steps: Callable[[], int] = lambda: 0
        self.trained = 0
        self.run, self.passes = settings.job if settings else "", False
        self.runs, self.is_in_phase = 0, False

    @cached_property
    def attachment(self) -> Attachment:
        """The attachment of this process: it sums tensors over the peers."""
        if self.settings is None:
            return make_attachment("solo")
        return make_attachment(self.settings.attachment, deadlines=self.deadlines, host=self.settings.host)

    @cached_property
    def membership(self) -> Membership:
        """This peer's part in the job; closed when the program ends, which sends the remaining records to the agent."""
        if self.settings is None:
            alone = StandaloneMembership()
            atexit.register(alone.close)
            return alone
        membership = JobMembership(
            self.settings, attachment=self.attachment, on_offer=lambda: None, write_trace=write_profiler_trace
        )
        atexit.register(membership.close)
        # The first use on a host compiles code, which takes minutes on busy processors.
        with membership.on_the_way():
            native.prepare()
        report = partial(membership.record, "events")
        atexit.register(watch_late_peers(self.attachment.late, report, steps=lambda: self.steps()))
        return membership

    def begin_run(self, *, on_offer: Callable[[], None], steps: Callable[[], int]) -> None:
        """Begins a run; ``on_offer``, called when a barrier is needed, requests the barrier in the graph.

        Raises ``UsageError`` if this process has already begun a run, and the job is not divided into phases."""
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
        # Before its first run this peer has not joined the other peers.
        if self.runs:
            self.membership.withdraw()

    # ---- phases --------------------------------------------------------------------------------------------------

    @cached_property
    def resumed(self) -> tuple[Path, Manifest] | None:
        """The path and manifest of the checkpoint of ``kungfu-run --resume``; ``None`` if none, and on a joiner."""
        settings = self.settings
        if settings is None or not settings.checkpoints.resume or not settings.checkpoints.founders:
            return None
        path = find(Path(settings.checkpoints.resume))
        return None if path is None else (path, read_manifest(path))

    @property
    def checkpoints(self) -> CheckpointSettings:
        """The checkpoint settings of the current phase; phases after that of the resumed checkpoint load none."""
        if self.settings is None:
            return CheckpointSettings()
        given = self.settings.checkpoints
        is_resumed = not self.several or (self.resumed is not None and self.resumed[1].phase >= self.phase)
        # A peer of the previous phase begins this one together with the others, like a founder.
        founders = max(1, given.founders) if self.membership.has_joined else given.founders
        return replace(given, resume=given.resume if is_resumed else "", founders=founders, job=self.settings.job)

    @property
    def phases_done(self) -> int:
        """The number of phases that are over on this peer."""
        return self.phase - self.is_in_phase

    def begin_phase(self) -> bytes | None:
        """Begins the next phase, for the program's next training.

        Returns the result of the phase if the phase is already over; ``None`` if this peer should take part."""
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
        """The result of the current phase, if the job or the resumed run has already finished it; else ``None``."""
        number, membership = self.phase, self.membership
        if self.resumed is not None and self.resumed[1].phase > number:
            return self._kept(number, (self.resumed[0] / phase_file(number)).read_bytes())
        # A peer that has been in a view takes part in all later phases.
        if membership.has_joined or membership.phases_over() < number:
            return None
        return self._kept(number, membership.fetch_phase(number))

    def _kept(self, number: int, content: bytes) -> bytes:
        """Keeps a phase's result for other peers, which may request it, and for this peer's checkpoints."""
        self.is_in_phase = False
        self.membership.past_phases.keep(number, lambda: content)
        return content

    def end_phase(self, content: Callable[[], bytes], *, terms: Terms, trained: int) -> None:
        """Ends the phase on this peer; ``content`` serialises the phase's result."""
        self.is_in_phase = self.passes = False
        self.membership.past_phases.keep(self.phase, content)
        self.terms, self.trained = terms, trained


_connections: list[JobConnection] = []  # holds this process's connection, in a job


def connect() -> JobConnection:
    """The connection of this process to its job; a new one for each call in a program that runs alone."""
    settings = read_settings()
    if settings is None:
        return JobConnection(None)
    if not _connections or _connections[0].settings != settings:
        _connections[:] = [JobConnection(settings)]
    return _connections[0]


def watch_late_peers(
    late: Callable[[], LateRanks | None], report: Callable[[LateEvent], None], *, steps: Callable[[], int]
) -> Callable[[], None]:
    """Reports late peers while other peers still wait, before the deadline ends the wait.

    A thread polls the attachment every second; the attachment returns each wait once, when it is long enough to be
    reported. The thread is a daemon, so it never keeps the program from ending.

    Returns:
        A function that ends the thread, after the current poll; nothing is reported afterwards.
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
    """Profiles this process with TensorFlow's profiler; called outside of the training thread.

    Returns:
        The error message; empty if the profile was written.

    Cost:
        During the profile some microseconds for each op of a step; the files are written afterwards.
    """
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tf.profiler.experimental.start(folder, options=options)
        time.sleep(seconds)
        tf.profiler.experimental.stop()
    # The program is already profiling itself, by a callback for example, or the folder is not writable.
    except (tf.errors.OpError, OSError) as error:
        return str(error)
    # The profiler raises no error if it cannot write.
    return "" if any(Path(folder).rglob("*.xplane.pb")) else f"nothing was written in {folder}"
