"""The peers of this host: started, listened to, ended. What they are started for is decided elsewhere."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kungfu.runtime.agent.record.journal import Journal
from kungfu.runtime.agent.supervisor.launch import (
    Process,
    count_gpus,
    end,
    kill_and_reap,
    peer_environment,
    start,
    terminate_all,
    threads_per_peer,
)
from kungfu.runtime.agent.supervisor.slots import choose_slot, devices_of
from kungfu.runtime.settings import Settings

__all__ = ["ProcessListener", "ProcessSupervisor"]

_GRACE_S = 2.0


class ProcessListener(Protocol):
    """Who hears what the peers of this host do; called in threads of the processes."""

    def printed(self, peer: int, text: str) -> None:
        """A peer printed a line."""

    def ended(self, peer: int, code: int, tail: Sequence[str]) -> None:
        """A peer ended, with its exit code (negative: the signal) and the last lines that it printed."""


class ProcessSupervisor:
    """Processes of this host, by peer, in its ``slots``. Only the agent's main thread may start some.

    See ``launch.start``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        slots: int,
        journal: Journal,
        listener: ProcessListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._environment, self.slots = list(command), environment, slots
        self._journal, self._listener, self._clock = journal, listener, clock
        self._processes: dict[int, Process] = {}
        self._slots_by_peer: dict[int, int] = {}
        self._vacated: dict[int, float] = {}
        self._folder: str | None = None

    def start(self, settings: Settings, *, joins: bool, over: Collection[int] = (), threads: int = 0) -> int:
        """Starts the peer of these settings and gives its process id; one that ``joins`` a view resumes nothing.

        ``over`` are peers of this host whose slots it may take, because they will leave; ``threads`` as of
        ``peer_environment``.
        """
        peer = settings.peer
        if joins:
            settings = replace(settings, checkpoints=replace(settings.checkpoints, founders=0, resume=""))
        taken = {one: slot for one, slot in list(self._slots_by_peer.items()) if one in self.running}
        slot = choose_slot(taken, slots=self.slots, over=over, vacated=self._vacated, now=self._clock())
        share = peer_environment(self._environment, place=slot, peers=self.slots, gpus=count_gpus(), threads=threads)
        folder = self._temporary_folder()
        environment = {**share, **({"TMPDIR": folder} if folder else {}), **settings.to_environment()}
        process = start(self._command, environment=environment, log=self._journal.output_of(peer), folder=folder)
        self._processes[peer], self._slots_by_peer[peer] = process, slot
        process.listen(
            lambda text: self._listener.printed(peer, text),
            lambda code: self._ended(peer, code),
        )
        return process.pid

    def _ended(self, peer: int, code: int) -> None:
        self._vacated[self._slots_by_peer[peer]] = self._clock()
        if code != 0:
            kill_and_reap(self._processes[peer])  # ends what a peer that has failed left behind, and forgets its number
        self._listener.ended(peer, code, self.tail(peer))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the peers of this host divide among themselves."""
        return devices_of(self._environment, gpus=count_gpus())

    @property
    def threads(self) -> int:
        """The threads that each peer would have of this host's cores."""
        return threads_per_peer(self.slots)

    @property
    def started(self) -> list[int]:
        """The peers that were ever started here."""
        return list(self._processes)

    @property
    def running(self) -> list[int]:
        """The peers whose processes have not ended."""
        return [peer for peer, process in list(self._processes.items()) if not process.ended()]

    def tail(self, peer: int) -> list[str]:
        """The last lines that a peer printed."""
        return list(self._processes[peer].tail) if peer in self._processes else []

    def kill(self, peer: int) -> None:
        """Ends a peer, and what it started, at once."""
        if peer in self._processes:
            end(self._processes[peer], signal.SIGKILL)

    def close(self) -> None:
        """Ends all of them, asked to first; nothing of them is left when this returns."""
        terminate_all(list(self._processes.values()), grace_s=_GRACE_S)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _temporary_folder(self) -> str:
        """For the temporary files of this job's peers on this host, such as the sources that autograph writes; a peer
        that is killed leaves its own. Empty where none can be made."""
        if self._folder is None:
            try:
                self._folder = tempfile.mkdtemp(prefix="kungfu-", dir=self._environment.get("TMPDIR"))
            except OSError:
                self._folder = ""
        return self._folder
