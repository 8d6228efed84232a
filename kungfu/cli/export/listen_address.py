"""The address of an HTTP server: the option that sets it, and the host names that requests may use."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from kungfu.errors import UsageError

LOOPBACK = "127.0.0.1"
BACKLOG = 512
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@]*))(?::\d*)?")


@dataclass(frozen=True)
class ListenAddress:
    """An address and a port; port 0 is any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_address(text: str, *, option: str, example: int) -> ListenAddress:
    """Parses ``[ADDRESS:]PORT``; without an address, only this machine can reach the port.

    Raises:
        UsageError: The text is not an address with a port; the message names the option and an example port.

    >>> [str(parse_address(text, option="--page", example=8080)) for text in ("9400", "0.0.0.0:9400", "[::1]:9400")]
    ['127.0.0.1:9400', '0.0.0.0:9400', '[::1]:9400']
    """
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) < 6 and int(port) <= 65535
    if not is_port or (":" in text and not host):
        raise UsageError(
            f"{option} {text}: must be PORT or ADDRESS:PORT with a port from 0 to 65535; without ADDRESS only "
            f"this machine reaches it, 0.0.0.0:{port if is_port else example} is for all"
        )
    return ListenAddress(host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port))


def listening(address: ListenAddress) -> socket.socket:
    """A socket that listens at an address; ``OSError`` if the port is taken, or the address is not this machine's."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, own = found[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The port of a page that has just ended is free again, even while its last connections are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(own)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def is_known(hosts: Sequence[str], address: str, *, printed_host: str = "") -> bool:
    """True if a request's header ``Host`` names this server; the header must occur exactly once.

    Any IP address is accepted, since only a name can be made to point at another machine. Names of the loopback
    interface are accepted; so are the names of this machine if the server listens for other machines.

    Args:
        printed_host: The name or the address in the URL that was printed for users.

    >>> [is_known([host], "127.0.0.1") for host in ("127.0.0.1", "localhost:80", "[::1]:80", "evil.example", "")]
    [True, True, True, False, False]
    >>> is_known(["localhost", "evil.example"], "127.0.0.1"), is_known([], "127.0.0.1")
    (False, False)
    """
    name = _name_in(hosts[0]).lower() if len(hosts) == 1 else ""
    if name and name in ("localhost", printed_host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return not _is_loopback(address) and name in _own_names()
    return True


@cache
def _own_names() -> tuple[str, str]:
    """The names of this machine; looked up once, since a name server may be slow."""
    return socket.gethostname().lower(), socket.getfqdn().lower()


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _name_in(host: str) -> str:
    """The name in a header ``Host``, without the port; empty if the header is malformed.

    >>> [_name_in(host) for host in ("localhost:80", "[::1]:80", "[::1].evil.example", "a:b")]
    ['localhost', '::1', '', '']
    """
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]) if found else ""
