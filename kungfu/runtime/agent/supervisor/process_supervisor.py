"""Supervises the peers of this host: starts each in a slot, watches it, and ends it on command."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import psutil

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
from kungfu.runtime.agent.supervisor.loaded_process import LoadedProcess
from kungfu.runtime.agent.supervisor.slots import choose_slot, devices_of
from kungfu.runtime.core.cluster.events import Spawn
from kungfu.runtime.ipc.joiner_page import JoinerPage
from kungfu.runtime.settings import Settings

_GRACE_S = 2.0


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
        spares: The number of spares that hold a device; the devices are those beyond the slots, if there are any.

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
        spares: int = 0,
    ) -> None:
        self._command, self._environment, self.slots = list(command), environment, slots
        self._journal, self._listener, self._clock = journal, listener, clock
        self._processes: dict[int, PeerProcess] = {}
        self._slots_by_peer: dict[int, int] = {}
        self._vacated: dict[int, float] = {}
        self._folder: str | None = None
        self._seats = max(slots, min(slots + spares, len(self.devices)))
        self._loaded: dict[int, LoadedProcess] = {}  # the processes that load TensorFlow, or have loaded it, and wait
        self.joiners = JoinerPage.create()

    def start(self, settings: Settings, spawn: Spawn, *, on_start: Callable[[int], None] = lambda pid: None) -> int:
        """Starts a peer and returns its process id; a peer that waits with TensorFlow loaded runs its program.

        Args:
            settings: The settings that all peers share: everything except the id of a peer.
            spawn: The command; names the peer to start, and the leaving peers whose slots the peer may share.
            on_start: Receives the process id before the listener can receive the peer's exit.
        """
        peer = spawn.peer
        if peer in self._processes and peer not in self._loaded:
            # A new leader has repeated the command.
            return self._processes[peer].pid
        settings = replace(settings, peer=peer, joiner_page=self.joiners.path)
        # A joiner gets the state of the others, not a checkpoint; other peers here are slower until it can join.
        if spawn.joins:
            settings = replace(settings, checkpoints=replace(settings.checkpoints, founders=0, resume=""))
            self.joiners.add(peer)
        if spawn.loads_only:
            # The process holds no device, and so no slot, until the job wants the peer.
            loaded = LoadedProcess.start(
                self._command, environment=self._environment_of(0, spawn.threads), folder=self._temporary_folder()
            )
            self._loaded[peer] = loaded
            return self._watch(peer, loaded.process, on_start)
        used = {one: slot for one, slot in list(self._slots_by_peer.items()) if one in self.running}
        slot = choose_slot(used, slots=self._seats, leaving=spawn.leaving, vacated=self._vacated, now=self._clock())
        environment = {**self._environment_of(slot, spawn.threads), **settings.to_environment()}
        self._slots_by_peer[peer] = slot
        if (waiting := self._loaded.pop(peer, None)) is not None:
            # If the process has just ended, its exit is reported like that of a joiner.
            waiting.run(environment)
            on_start(waiting.process.pid)
            return waiting.process.pid
        process = start(self._command, environment=environment, folder=self._temporary_folder())
        return self._watch(peer, process, on_start)

    def _watch(self, peer: int, process: PeerProcess, on_start: Callable[[int], None]) -> int:
        self._processes[peer] = process
        on_start(process.pid)
        process.watch(
            self._journal.output_of(peer),
            lambda text: self._listener.on_output(peer, text),
            lambda code: self._on_exit(peer, code),
        )
        return process.pid

    def newly_loaded(self) -> list[tuple[int, int]]:
        """The peers that have loaded TensorFlow and wait since the last call, each with the bytes of its memory that no
        other process shares."""
        found = []
        for peer, one in list(self._loaded.items()):
            if one.process.has_exited():
                self._loaded.pop(peer).close()
            elif one.has_newly_loaded():
                # From here on the process takes no processor time from the peers.
                self.joiners.remove([peer])
                with suppress(psutil.Error):  # the process has just ended
                    found.append((peer, psutil.Process(one.process.pid).memory_full_info().uss))
        return found

    def _environment_of(self, slot: int, threads: int) -> dict[str, str]:
        """The environment variables of a peer in ``slot``, except the variable with kungfu's settings of the peer."""
        share = peer_environment(self._environment, slot=slot, peers=self.slots, gpus=count_gpus(), threads=threads)
        folder = self._temporary_folder()
        return {**share, **({"TMPDIR": folder} if folder else {})}

    def _on_exit(self, peer: int, code: int) -> None:
        # A process that has only loaded TensorFlow had no slot.
        if (slot := self._slots_by_peer.get(peer)) is not None:
            self._vacated[slot] = self._clock()
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
        for waiting in self._loaded.values():
            waiting.close()
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
