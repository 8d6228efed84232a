"""A real etcd, on free ports of this machine or on a host of an emulated network; `tools/etcd.sh` brings it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.emulation.network import NetworkHost
from kungfu.runtime.ipc.etcd import Etcd, StoreError
from tests.jobs.fork_server import ROOT
from tests.runtime.agent.consensus.agents import free_port

_BROUGHT = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "kungfu" / "etcd"
PROGRAM = shutil.which("etcd") or (str(_BROUGHT) if _BROUGHT.is_file() else None)
needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="there is no etcd; `tools/etcd.sh` brings it")
_ANSWERS_WITHIN_S = 60.0
_READ = "import sys; from kungfu.runtime.ipc.etcd import Etcd; Etcd(sys.argv[1], 'kungfu/', deadline_s=5.0).read()"


class EtcdServer:
    """An etcd with one member, on this machine or ``within`` a host of a network; its data outlives its process."""

    def __init__(self, folder: Path, *options: str, host: str = "127.0.0.1", within: NetworkHost | None = None) -> None:
        self.folder, self.options, self.within = folder, options, within
        ports = (free_port(host), free_port(host)) if within is None else (2379, 2380)
        self.address, self._peer = (f"{within.address if within else host}:{port}" for port in ports)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Starts it, with its previous data, and waits until it answers."""
        assert PROGRAM is not None
        client, peer = f"http://{self.address}", f"http://{self._peer}"
        line = [
            PROGRAM, "--data-dir", str(self.folder / "data"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", *self.options, *options,
        ]  # fmt: skip
        line = line if self.within is None else self.within.command(line, folder=self.folder)
        with (self.folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log)
        until = time.monotonic() + _ANSWERS_WITHIN_S
        while not self._answers():
            assert time.monotonic() < until, (self.folder / "etcd.log").read_text()[-3000:]
            time.sleep(0.05)

    def _answers(self) -> bool:
        if self.within is not None:  # only a process of the network reaches it
            line = self.within.command([sys.executable, "-c", _READ, self.address], folder=ROOT)
            return subprocess.run(line, capture_output=True, check=False).returncode == 0
        try:
            self.keys("")
        except StoreError:
            return False
        return True

    def keys(self, prefix: str) -> dict[str, bytes]:
        """The values of all keys under a prefix, without the prefix."""
        found = Etcd(self.address, prefix or "kungfu/", deadline_s=5.0).read()
        return {key: entry.value for key, entry in found.items()}

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still within the block."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def lose_data(self) -> None:
        """Kills it, and starts it without its data."""
        self.end()
        shutil.rmtree(self.folder / "data")
        self.start()

    def end(self) -> None:
        """Kills it; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def etcd_server(folder: Path, *options: str, **given: Any) -> Iterator[EtcdServer]:
    """A running etcd, which ends with the block; ``given`` tells where it runs."""
    server = EtcdServer(folder, *options, **given)
    try:
        server.start()
        yield server
    finally:
        server.end()
