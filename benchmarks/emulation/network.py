"""Hosts on an emulated network: Linux namespaces on a bridge, with links that can be cut and slowed down.

Each host has a network interface, a name and an ``/etc/hosts`` of its own, as Horovod and kungfu look a host up by its
name; processes, files and shared memory are this machine's. A host is held by a process that waits for the end of its
standard input, and a namespace without a name ends with its last process. So nothing is left when the process that
made the network ends, however it ends. Without root, the namespaces belong to a user namespace, if the kernel permits
one.

A cut is silent, unlike an interface that is down: the sender's packets carry its own hardware address as the
receiver's, and the bridge drops a packet that would have to leave by the link on which it came. So a single direction
between two hosts can be cut without a packet filter, which many kernels lack.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Network", "NetworkHost", "NetworkUnavailableError", "network"]

_TOOLS = ("unshare", "nsenter", "setpriv", "ip", "tc", "mount", "mktemp", "hostname")
_WITHIN_S = 30.0  # for each command that makes or changes the network
# The file has no name any more when the namespace ends.
_HOSTS_FILE = 'file=$(mktemp) && echo "{text}" >$file && mount --bind $file /etc/hosts && rm $file'
_BURST_KB, _QUEUE_MS = 64, 100  # of a slow link


class NetworkUnavailableError(Exception):
    """This machine does not permit an emulated network; the text names the reason."""


@dataclass(frozen=True)
class NetworkHost:
    """A host of the network, held by the process ``holder``.

    Args:
        name: The host's name, which all hosts of the network resolve to ``address``.
        address: The IPv4 address of the host.
        holder: The id of the process that holds the host's namespaces.
    """

    name: str
    address: str
    holder: int

    def command(self, words: Sequence[object], *, folder: Path | str = "/") -> list[str]:
        """The command that runs ``words`` on this host, in ``folder``; it is killed if its parent thread ends."""
        inside = _entering(self.holder, "--mount", "--uts")
        return [*inside, "setpriv", "--pdeathsig", "KILL", "env", "--chdir", str(folder), *map(str, words)]

    @property
    def received_bytes(self) -> int:
        """The bytes that this host has received from others, including the headers of packets."""
        lines = Path(f"/proc/{self.holder}/net/dev").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.strip().startswith("eth0:"))

    def signal(self, number: int) -> None:
        """Sends a signal to every process of this host: SIGKILL is a loss of power, SIGSTOP a freeze."""
        own = os.readlink(f"/proc/{self.holder}/ns/net")
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process has ended, or is another user's
                if int(entry.name) != self.holder and os.readlink(entry / "ns/net") == own:
                    os.kill(int(entry.name), number)


@dataclass(frozen=True)
class Network:
    """The hosts on one bridge, whose namespace is held by the process ``switch``."""

    hosts: tuple[NetworkHost, ...]
    switch: int

    def cut(self, senders: Sequence[int], receivers: Sequence[int]) -> None:
        """Loses all packets from each of ``senders`` to each of ``receivers``, in this direction only."""
        self._link(senders, receivers, is_cut=True)

    def mend(self, senders: Sequence[int], receivers: Sequence[int]) -> None:
        """Delivers packets from each of ``senders`` to each of ``receivers`` again."""
        self._link(senders, receivers, is_cut=False)

    def part(self, *groups: Sequence[int]) -> None:
        """Cuts all links between hosts of different ``groups``, and mends all links within a group."""
        for group in groups:
            others = [host for other in groups if other is not group for host in other]
            self.cut(group, others)
            self.mend(group, group)

    def slow_down(self, host: int, *, mbit: float) -> None:
        """Limits a host to ``mbit`` megabits per second in each direction."""
        shape = f"root tbf rate {mbit:g}mbit burst {_BURST_KB}kb latency {_QUEUE_MS}ms"
        _run([*_entering(self.hosts[host].holder), "tc", "qdisc", "replace", "dev", "eth0", *shape.split()])
        _run([*_entering(self.switch), "tc", "qdisc", "replace", "dev", f"port{host}", *shape.split()])

    def _link(self, senders: Sequence[int], receivers: Sequence[int], *, is_cut: bool) -> None:
        for sender in senders:
            lines = [
                f"neigh replace {self.hosts[to].address} lladdr {_hardware(sender if is_cut else to)} dev eth0"
                for to in receivers
                if to != sender
            ]
            _run([*_entering(self.hosts[sender].holder), "ip", "-batch", "-"], text="\n".join(lines))


@contextmanager
def network(size: int) -> Iterator[Network]:
    """A network of hosts ``node-1``, ``node-2``, ..., all reachable from each other; it ends with the block.

    Args:
        size: The number of hosts, 1 to 200.

    Raises:
        NetworkUnavailableError: A tool is missing, or the kernel refuses a namespace or an interface.
    """
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise NetworkUnavailableError(f"the commands {', '.join(missing)} are missing (util-linux and iproute2)")
    names = [f"node-{host + 1}" for host in range(size)]
    addresses = [f"10.77.0.{host + 1}" for host in range(size)]
    with ExitStack() as stack:
        table = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
        owner = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        switch = stack.enter_context(_held(["unshare", *owner, "--net"], "true"))
        _run([*_entering(switch), "ip", "-batch", "-"], text="link add bridge type bridge\nlink set bridge up")
        made = list[NetworkHost]()
        for host, (name, address) in enumerate(zip(names, addresses, strict=True)):
            enter = ["nsenter", "--target", switch, "--user", "--preserve-credentials"] if owner else []
            setup = f"hostname {name} && {_HOSTS_FILE.format(text=chr(10).join(table))}"
            unshare = [*enter, "unshare", "--net", "--mount", "--uts"]
            made.append(NetworkHost(name, address, stack.enter_context(_held(unshare, setup))))
            _connect(switch, made[-1].holder, host=host, address=address)
        whole = Network(tuple(made), switch)
        whole.mend(range(size), range(size))
        yield whole


def _connect(switch: int, holder: int, *, host: int, address: str) -> None:
    """Connects a host to the bridge; the hosts' hardware addresses are listed by hand, so that a cut can change one."""
    lines = [
        f"link add port{host} type veth peer name eth0 address {_hardware(host)} netns {holder}",
        f"link set port{host} master bridge up",
    ]
    _run([*_entering(switch), "ip", "-batch", "-"], text="\n".join(lines))
    lines = ["link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up"]
    _run([*_entering(holder), "ip", "-batch", "-"], text="\n".join(lines))


def _hardware(host: int) -> str:
    return f"02:00:00:00:00:{host + 1:02x}"


def _entering(holder: int, *more: str) -> list[str]:
    """The words before a command that runs in the network, and in ``more`` namespaces, of a holder."""
    owner = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(holder), *owner, "--net", *more, "--"]


@contextmanager
def _held(unshare: Sequence[object], setup: str) -> Iterator[int]:
    """New namespaces, in which ``setup`` has run; gives the id of the process that holds them until the block ends."""
    words = [*map(str, unshare), "--", "sh", "-c", f"{setup} && echo held && exec cat"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:  # closes its standard input at the end, and so ends it
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "held\n":
            raise NetworkUnavailableError(f"`{' '.join(words[:-1])} ...`: {process.stderr.read().strip()}")
        yield process.pid


def _run(words: Sequence[str], *, text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        raise NetworkUnavailableError(f"`{' '.join([*words, text])}`: {done.stderr.strip()}")
