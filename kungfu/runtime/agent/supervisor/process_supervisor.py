"""Supervises the peers of this host: starts each in a slot, watches it, and ends it on command."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.supervisor.launch import (
    PeerProcess,
    count_gpus,
    kill_and_reap,
    peer_environment,
    start,
    terminate_all,
    threads_per_peer,
)
from kungfu.runtime.agent.supervisor.slots import choose_slot, devices_of
from kungfu.runtime.agent.supervisor.standby import StandbyPool
from kungfu.runtime.core.cluster.events import Spawn
from kungfu.runtime.ipc.joiner_page import JoinerPage
from kungfu.runtime.settings import Settings

_GRACE_S = 2.0
CALM_S = 20.0
_STANDBY = -1  # in the page of joiners: a loading process takes processor time from the peers, like a joiner


class ProcessListener(Protocol):
    """Receives the output and the exits of peers; called in threads of the supervisor."""

    def on_output(self, peer: int, text: str) -> None:
        """Handles a line that a peer has printed."""

    def on_exit(self, peer: int, code: int, tail: Sequence[str]) -> None:
        """Handles the exit of a peer, with its exit code (negative: the signal) and its last lines of output."""


class ProcessSupervisor:
    """The processes of this host, by peer. Only the agent's main thread may start a process.

    Args:
        command: The user's program, the same for every peer.
        environment: The user's variables.
        slots: The number of peers that this host has room for.
        journal: Writes the peers' output.
        listener: Receives the peers' lines and exits.
        clock: A monotonic clock in seconds.
        standby: The number of standby processes for peers that start later.

    Attributes:
        joiners: The page that shows which joiners are getting ready on this host; the peers of this host read the page.
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
        standby: int = 0,
    ) -> None:
        self._standby, self._threads = StandbyPool(command, size=standby), 0
        self._command, self._environment, self.slots = list(command), environment, slots
        self._journal, self._listener, self._clock = journal, listener, clock
        self._processes: dict[int, PeerProcess] = {}
        self._slots_by_peer: dict[int, int] = {}
        self._vacated: dict[int, float] = {}
        self._folder: str | None = None
        self._joined_s: float | None = None  # when a joiner was started last
        self.joiners = JoinerPage.create()

    def start(self, settings: Settings, spawn: Spawn, *, on_start: Callable[[int], None] = lambda pid: None) -> int:
        """Starts a peer and returns its process id.

        Args:
            settings: The settings that all peers share: everything except the id of a peer.
            spawn: The command; names the peer to start, and the leaving peers whose slots the peer may share.
            on_start: Receives the process id before the listener can receive the peer's exit.
        """
        peer = spawn.peer
        settings = replace(settings, peer=peer, joiner_page=self.joiners.path)
        # A joiner gets the state of the others, not a checkpoint; other peers here are slower until it can join.
        if spawn.joins:
            settings = replace(settings, checkpoints=replace(settings.checkpoints, founders=0, resume=""))
            self.joiners.add(peer)
            self._joined_s = self._clock()
        used = {one: slot for one, slot in list(self._slots_by_peer.items()) if one in self.running}
        slot = choose_slot(used, slots=self.slots, leaving=spawn.leaving, vacated=self._vacated, now=self._clock())
        self._threads = spawn.threads
        environment = {**self._environment_of(slot), **settings.to_environment()}
        process = self._standby.claim(environment)
        if process is None:
            process = start(self._command, environment=environment, folder=self._temporary_folder())
        self._processes[peer], self._slots_by_peer[peer] = process, slot
        on_start(process.pid)
        process.watch(
            self._journal.output_of(peer),
            lambda text: self._listener.on_output(peer, text),
            lambda code: self._on_exit(peer, code),
        )
        return process.pid

    def keep_standby(self) -> str:
        """Starts the missing standby processes, one after the other, unless a joiner was started here recently: loading
        takes processor time from the peers. If no standby processes are started any more, returns the reason once; else
        returns an empty text."""
        pool = self._standby
        # None are wanted, or the reason was already returned.
        if not pool.size:
            return ""
        is_short = pool.is_short()
        if not pool.is_loading:
            self.joiners.remove([_STANDBY])
        if is_short and (self._joined_s is None or self._clock() - self._joined_s >= CALM_S):
            pool.add(self._environment_of(0), folder=self._temporary_folder())
            self.joiners.add(_STANDBY)
        return pool.failure

    def _environment_of(self, slot: int) -> dict[str, str]:
        """The environment variables of a peer in ``slot``, except the variable with kungfu's settings of the peer."""
        share = peer_environment(
            self._environment, slot=slot, peers=self.slots, gpus=count_gpus(), threads=self._threads
        )
        folder = self._temporary_folder()
        return {**share, **({"TMPDIR": folder} if folder else {})}

    def _on_exit(self, peer: int, code: int) -> None:
        self._vacated[self._slots_by_peer[peer]] = self._clock()
        self.joiners.remove([peer])
        if code != 0:
            kill_and_reap(self._processes[peer])  # a peer that has failed may have left processes behind
        self._listener.on_exit(peer, code, self.tail(peer))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the peers of this host share."""
        return devices_of(self._environment, gpus=count_gpus())

    @property
    def threads(self) -> int:
        """The threads that each peer would get from this host's cores."""
        return threads_per_peer(self.slots)

    @property
    def started(self) -> list[int]:
        """The peers that were ever started on this host."""
        return list(self._processes)

    @property
    def running(self) -> list[int]:
        """The peers with processes that have not ended."""
        return [peer for peer, process in list(self._processes.items()) if not process.has_exited()]

    def tail(self, peer: int) -> list[str]:
        """The last lines that a peer printed."""
        return list(self._processes[peer].tail) if peer in self._processes else []

    def kill(self, peer: int) -> None:
        """Kills a peer and all its descendants."""
        if peer in self._processes:
            self._processes[peer].send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Ends all peers, first by SIGTERM, and removes their temporary files."""
        self._standby.close()
        terminate_all(list(self._processes.values()), grace_s=_GRACE_S)
        self.joiners.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _temporary_folder(self) -> str:
        """The folder for temporary files of this host's peers, such as autograph sources; killed peers leave such files
        behind. Empty if no folder can be made."""
        if self._folder is None:
            try:
                self._folder = tempfile.mkdtemp(prefix="kungfu-", dir=self._environment.get("TMPDIR"))
            except OSError:
                self._folder = ""
        return self._folder
