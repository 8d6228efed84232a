"""The hosts of an emulated network reach each other by name, unless a link is cut; nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.emulation.network import Network
from tests.jobs.harness import awaited, networked

SENDS = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(bytes(1400), ('{name}', 9))"


def arrives(net: Network, sender: int, receiver: int, *, probe: int) -> bool:
    """True if a packet reaches its receiver before another packet of the same sender reaches ``probe``."""
    before = [host.received_bytes for host in net.hosts]
    for to in (receiver, probe):
        send = [sys.executable, "-S", "-c", SENDS.format(name=net.hosts[to].name)]
        subprocess.run(net.hosts[sender].command(send), check=True, timeout=60)
    awaited(lambda: net.hosts[probe].received_bytes - before[probe] > 1000, what="the probe", deadline_s=60.0)
    return net.hosts[receiver].received_bytes - before[receiver] > 1000


def test_links_are_cut_in_one_direction_and_between_groups_and_mended() -> None:
    with networked(3) as net:
        net.slow_down(2, mbit=50)
        assert arrives(net, 0, 1, probe=2)
        net.cut([0], [1])
        assert not arrives(net, 0, 1, probe=2)
        assert arrives(net, 1, 0, probe=2)
        net.part([0, 1], [2])
        assert arrives(net, 0, 1, probe=1)
        assert not arrives(net, 0, 2, probe=1)
        net.part([0, 1, 2])
        assert arrives(net, 2, 0, probe=1)


def test_each_host_has_a_name_and_processes_of_its_own_and_ends_with_the_network() -> None:
    with networked(2) as net:
        show = net.hosts[1].command(["sh", "-c", "hostname; pwd; cat /etc/hosts"], folder="/usr")
        shown = subprocess.run(show, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
        assert shown == ["node-2", "/usr", "127.0.0.1 localhost", "10.77.0.1 node-1", "10.77.0.2 node-2"]
        (own, other) = (subprocess.Popen(host.command(["sleep", "1000"])) for host in net.hosts)
        awaited(lambda: _network_of(own.pid) == _network_of(net.hosts[0].holder), what="its host", deadline_s=60.0)
        net.hosts[0].signal(signal.SIGKILL)
        assert own.wait(60.0) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
        other.wait()
    assert not any(Path(f"/proc/{holder}").exists() for holder in (net.switch, *(host.holder for host in net.hosts)))


def _network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")
