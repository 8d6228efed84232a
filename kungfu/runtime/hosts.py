"""The hosts of a job: their names and slots, the addresses of their agents, and the index of this machine."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import psutil

from kungfu.errors import UsageError

_HIGHEST_PORT = 65535
_IPV6 = re.compile(r"\[?[0-9A-Fa-f:.]+\]?")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Host:
    """A machine with room for ``slots`` peers. Its agent listens on ``port``; 0 means any free port.

    ``name`` is an IPv4 address, or a name that all hosts resolve to this machine.
    """

    name: str
    slots: int
    port: int

    @property
    def address(self) -> str:
        """The address of the host's agent, ``HOST:PORT``."""
        return f"{self.name}:{self.port}"


@dataclass(frozen=True)
class StoreAddress:
    """The ``address`` (``HOST:PORT``) of an etcd, and the name of the ``job`` in it."""

    address: str
    job: str


def parse_store(store: str, job: str) -> StoreAddress:
    """Parses the address of a store.

    Args:
        store: The address, as ``etcd://HOST:PORT``.

    Raises:
        UsageError: The text is no such address, or the name has other characters than letters, digits, ".", "_", "-".

    >>> parse_store("etcd://10.0.0.9:2379", "digits")
    StoreAddress(address='10.0.0.9:2379', job='digits')
    """
    scheme, _, address = store.partition("://")
    name, _, port = address.rpartition(":")
    if scheme != "etcd" or not _NAME.fullmatch(name) or not port.isdecimal() or not 1 <= int(port) <= _HIGHEST_PORT:
        raise UsageError(
            f"--store {store}: is no etcd://HOST:PORT, as in etcd://10.0.0.9:2379; several members, a user name and "
            "TLS (https) are not supported yet"
        )
    if not _NAME.fullmatch(job):
        raise UsageError(f"--job {job!r}: a name has letters, digits, '.', '_' and '-', as in digits-3")
    return StoreAddress(address, job)


def parse_hosts(text: str, *, port: int) -> tuple[Host, ...]:
    """Parses a list of hosts, and keeps its order.

    Args:
        text: The list, as ``HOST:SLOTS,...``.
        port: The port of all agents, 1 to 65535.

    Raises:
        UsageError: The text is not a list of hosts, names a host twice, or has an IPv6 address.

    >>> parse_hosts("10.0.0.1:2, node-b:4", port=28100)
    (Host(name='10.0.0.1', slots=2, port=28100), Host(name='node-b', slots=4, port=28100))
    """
    if not 1 <= port <= _HIGHEST_PORT:
        raise UsageError(f"port {port}: must be from 1 to {_HIGHEST_PORT}, and the same on every host")
    if not text.strip():
        raise UsageError("the list of hosts is empty; write HOST:SLOTS,..., as in 10.0.0.1:2,10.0.0.2:2")
    hosts = tuple(_host(words.strip(), port) for words in text.split(","))
    names = [host.name for host in hosts]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(f"{text!r} names {', '.join(doubled)} more than once; name each host once, with all its slots")
    return hosts


def _host(words: str, port: int) -> Host:
    name, _, slots = words.rpartition(":")
    if ":" in name and _IPV6.fullmatch(name):
        raise UsageError(
            f"{words!r}: IPv6 addresses are not supported; give the host's IPv4 address or a name, as in a:2"
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{words!r} is no HOST:SLOTS; write the host's address or name and how many peers it has room for"
        )
    if not slots.isdecimal() or int(slots) < 1:
        raise UsageError(f"{words!r}: {slots!r} slots; must be a number of peers that is 1 or more")
    return Host(name, int(slots), port)


def addresses_of(name: str) -> frozenset[str]:
    """Resolves ``name``, a host name or an address, to IPv4 addresses; empty if the name is unknown."""
    try:
        found = socket.getaddrinfo(name, None, family=socket.AF_INET)
    except OSError:
        return frozenset()
    return frozenset(str(entry[4][0]) for entry in found)


def local_addresses() -> frozenset[str]:
    """The IPv4 addresses of this machine's network interfaces, and of its host name."""
    interfaces = psutil.net_if_addrs().values()
    listed = {entry.address for entries in interfaces for entry in entries if entry.family == socket.AF_INET}
    return frozenset(listed) | addresses_of(socket.gethostname())


def own_index(
    hosts: Sequence[Host],
    named: str | None,
    *,
    local_addresses: Collection[str],
    resolve: Callable[[str], Collection[str]] = addresses_of,
) -> int:
    """The index of this machine in ``hosts``.

    Args:
        hosts: The hosts of the job.
        named: The name of the host that the user has chosen; ``None`` to choose the host whose name resolves to a local
            address.
        local_addresses: The addresses of this machine; loopback addresses always count as local too.

    Raises:
        UsageError: ``named`` is not in the list, or this machine matches no host or several hosts.

    >>> own_index(parse_hosts("10.0.0.1:2,10.0.0.2:2", port=28100), None, local_addresses={"10.0.0.2"})
    1
    """
    names = [host.name for host in hosts]
    if named is not None:
        if named not in names:
            raise UsageError(
                f"--self {named}: is none of the hosts {', '.join(names)}; give one of these as it is written"
            )
        return names.index(named)
    ours = [index for index, name in enumerate(names) if any(_is_ours(one, local_addresses) for one in resolve(name))]
    if len(ours) == 1:
        return ours[0]
    which = (
        f"several of the hosts, {', '.join(names[index] for index in ours)}" if ours else f"none of {', '.join(names)}"
    )
    mine = ", ".join(sorted(local_addresses)) or "none"
    raise UsageError(
        f"by its addresses ({mine}) this machine is {which}; give --self HOST to say which of the hosts it is"
    )


def on_one_machine(hosts: Sequence[Host]) -> bool:
    """True if all hosts are loopback addresses, as when one machine simulates several hosts."""
    return all(_is_loopback(host.name) for host in hosts)


def _is_ours(address: str, local: Collection[str]) -> bool:
    return address in local or ipaddress.ip_address(address).is_loopback


def _is_loopback(name: str) -> bool:
    found = addresses_of(name)
    return bool(found) and all(ipaddress.ip_address(one).is_loopback for one in found)
