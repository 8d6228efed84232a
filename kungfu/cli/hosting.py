"""The options of kungfu-run for hosts: the hosts' names, the index of this machine, and the shared secret.

Impossible or unsafe values are refused here, before any process starts: more peers than slots, shared memory between
machines, a host that other hosts cannot reach, a secret that other users can read.
"""

from __future__ import annotations

import argparse
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import UsageError
from kungfu.runtime.hosts import Host, addresses_of, local_addresses, on_one_machine, own_index, parse_hosts

SECRET_KEY = "KUNGFU_SECRET"

_PORT = 28100
_ALONE = "127.0.0.1"
_LEAST_SECRET_BYTES = 16
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HOW = (
    'make one with `python -c "import secrets; print(secrets.token_hex(32))"` and give it to every host, in a file of '
    f"mode 0600 (--secret-file FILE) or in the environment variable {SECRET_KEY}"
)


@dataclass(frozen=True)
class Hosting:
    """The hosts of the job in the order of the command line, and the index of this host."""

    hosts: tuple[Host, ...]
    index: int
    job: str  # the name of the job, if this host creates the job
    secret: str  # in hexadecimal, the same on all hosts

    @property
    def local(self) -> Host:
        return self.hosts[self.index]

    def folder(self, stem: Path) -> Path:
        """The path ``stem``; except on the first host, the host's name is appended, to keep hosts' records apart."""
        return stem if self.index == 0 else stem.with_name(f"{stem.name}-{self.local.name}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for hosts to ``parser``."""
    group = parser.add_argument_group(
        "several hosts", "Start the same command on each host; the first in the list creates the job (docs/hosts.md)."
    )
    add = group.add_argument
    add("-H", "--hosts", metavar="HOST:SLOTS,...", help="the hosts, each with its number of slots for peers")
    add("--self", dest="own_name", metavar="HOST", help="this host in the list (found by its addresses)")
    add("--port", type=int, metavar="N", help=f"the port of kungfu-run, the same on every host ({_PORT})")
    add("--secret-file", type=Path, metavar="FILE", help=f"the hosts' shared secret, in hexadecimal ({SECRET_KEY})")


def read_hosting(
    given: argparse.Namespace, *, maximum: int, attachment: str, environment: Mapping[str, str]
) -> Hosting:
    """The hosts that a command line names; without ``--hosts``, only this machine at a loopback address.

    Raises:
        UsageError: The hosts cannot form a job of up to ``maximum`` peers with the attachment, or the options conflict.
    """
    # On one machine nothing is shared with other hosts, so a random secret for this job is enough.
    if given.hosts is None:
        options = {"--self": given.own_name, "--port": given.port, "--secret-file": given.secret_file}
        for name, value in options.items():
            if value is not None:
                raise UsageError(f"{name} {value}: is about the hosts of a job; give --hosts HOST:SLOTS,... too")
        return Hosting((Host(_ALONE, maximum, 0),), 0, secrets.token_hex(4), secrets.token_hex(32))
    hosts = parse_hosts(given.hosts, port=_PORT if given.port is None else given.port)
    slots = sum(host.slots for host in hosts)
    if maximum > slots:
        raise UsageError(
            f"--max {maximum} (or -np): --hosts {given.hosts} has room for {slots} peers; give the hosts more slots, "
            "or the job fewer peers"
        )
    _check_reach(hosts, attachment=attachment)
    index = own_index(hosts, given.own_name, local_addresses=local_addresses())
    secret = _secret(given.secret_file, environment)
    # Several hosts cannot agree on a random secret; a single host generates one.
    if secret is None and len(hosts) > 1:
        raise UsageError(f"several hosts need a secret that they share; {_HOW}")
    return Hosting(hosts, index, secrets.token_hex(4), secret or secrets.token_hex(32))


def _check_reach(hosts: Sequence[Host], *, attachment: str) -> None:
    """Refuses hosts whose peers could not reach each other."""
    # Peers on one machine reach each other by any address.
    if len(hosts) == 1 or on_one_machine(hosts):
        return
    if attachment == "local":
        raise UsageError(
            "--attachment local is shared memory, and so for the peers of one machine (or of several loopback "
            "addresses, to try hosts out on one machine); between hosts give --attachment horovod"
        )
    # A loopback address reaches this machine only from here; on another host it reaches that host.
    for host in hosts:
        if on_one_machine([host]):
            found = ", ".join(sorted(addresses_of(host.name)))
            raise UsageError(
                f"--hosts: {host.name} is {found} on this machine, where no other host can reach it; name the host by "
                "an address that all hosts reach, or correct /etc/hosts"
            )


def _secret(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The secret in hexadecimal; ``None`` if no secret is given."""
    if file is None:
        return _checked(environment[SECRET_KEY], SECRET_KEY) if SECRET_KEY in environment else None
    try:
        with file.open() as opened:  # the mode of the opened file, which cannot be replaced in between
            mode, text = stat.S_IMODE(os.fstat(opened.fileno()).st_mode), opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--secret-file {file}: cannot be read ({error}); {_HOW}") from error
    if mode & _OTHERS:
        raise UsageError(
            f"--secret-file {file} has mode {mode:04o}, so other users of this machine may know it: only you may read "
            f"it; run `chmod 600 {file}`, and create a new secret if another user may have read it"
        )
    return _checked(text, f"--secret-file {file}")


def _checked(text: str, where: str) -> str:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        raise UsageError(f"{where} holds no hexadecimal number; {_HOW}") from None
    if len(secret) < _LEAST_SECRET_BYTES:
        raise UsageError(f"{where} holds {len(secret)} bytes; must be {_LEAST_SECRET_BYTES} or more: {_HOW}")
    return secret.hex()
