"""Where a server of this package listens, as an option of a command line says it."""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.errors import UsageError

__all__ = ["LOOPBACK", "ListenAddress", "parse_address"]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ListenAddress:
    """An address and a port; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_address(text: str, *, option: str, example: int) -> ListenAddress:
    """The address of ``[ADDRESS:]PORT``; without an address only this machine reaches the port.

    Args:
        text: What was given.
        option: The option that it was given to.
        example: A port that people would take.

    Raises:
        UsageError: It is no port.

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
