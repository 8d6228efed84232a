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
from kungfu.event_log.values import counted
from kungfu.runtime.hosts import (
    Host,
    StoreAddress,
    addresses_of,
    local_addresses,
    on_one_machine,
    own_index,
    parse_hosts,
    parse_store,
)

SECRET_KEY = "KUNGFU_SECRET"

_PORT, _HIGHEST_PORT = 28100, 65535
_ALONE = "127.0.0.1"
_LEAST_SECRET_BYTES = 16
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HOW = (
    'make one with `python -c "import secrets; print(secrets.token_hex(32))"` and give it to every host, in a file of '
    f"mode 0600 (--secret-file FILE) or in the environment variable {SECRET_KEY}"
)


@dataclass(frozen=True)
class Hosting:
    """The hosts of the job in the order of the command line, and the index of this host.

    Args:
        hosts: The hosts; of a host that joins a running job, this host alone.
        index: The index of this host; 0 for a host that no list names.
        job: The name of the job, if this host creates the job.
        secret: The secret in hexadecimal, the same on all hosts.
        join: The addresses of hosts of the job that this host joins; empty if this host is in the job's list.
        min_hosts: The number of hosts with which the job begins; 0 for all ``hosts``.
        store: The etcd that decides who leads, if there is one.
    """

    hosts: tuple[Host, ...]
    index: int
    job: str
    secret: str
    join: tuple[str, ...] = ()
    min_hosts: int = 0
    store: StoreAddress | None = None

    @property
    def local(self) -> Host:
        return self.hosts[self.index]

    @property
    def shown(self) -> int | str:
        """The index of this host, by which the record of the job names it; its name if it has no number yet."""
        is_numbered = not self.join and (self.store is None or len(self.hosts) > 1)
        return self.index if is_numbered else self.local.name

    def folder(self, stem: Path) -> Path:
        """The path ``stem``; except on the first host, the host's name is appended, to keep hosts' records apart."""
        return stem if self.shown == 0 else stem.with_name(f"{stem.name}-{self.local.name}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for hosts to ``parser``."""
    group = parser.add_argument_group(
        "several hosts",
        "Start the same command on each host; the first in the list creates the job. Others may join (docs/hosts.md).",
    )
    add = group.add_argument
    add("-H", "--hosts", metavar="HOST:SLOTS,...", help="the hosts, each with its number of slots for peers")
    add(
        "--self", dest="own_name", metavar="HOST[:SLOTS]",
        help="this host in the list (found by its addresses); without a list, also its slots",
    )  # fmt: skip
    add("--join", metavar="HOST[:PORT],...", help="join the running job of these hosts, any of its hosts, as --self")
    add("--min-hosts", type=int, metavar="N", help="begin with N hosts, and take the others later (all in the list)")
    add(
        "--place", choices=("pack", "spread"),
        help="start peers on one host after the other, or on the one with the fewest peers (pack)",
    )  # fmt: skip
    add("--port", type=int, metavar="N", help=f"the port of kungfu-run, the same on every host ({_PORT})")
    add("--secret-file", type=Path, metavar="FILE", help=f"the hosts' shared secret, in hexadecimal ({SECRET_KEY})")
    add("--store", metavar="etcd://HOST:PORT", help="an etcd that decides who leads; needs --job")
    add("--job", metavar="NAME", help="the name of the job in --store")


def read_hosting(
    given: argparse.Namespace, *, size: int, maximum: int, attachment: str, environment: Mapping[str, str]
) -> Hosting:
    """The hosts that a command line names; without any, only this machine at a loopback address.

    Raises ``UsageError`` if they cannot form a job of ``size`` peers with the attachment, or the options conflict."""
    names_itself = given.own_name is not None and ":" in given.own_name
    # On one machine nothing is shared with other hosts, so a random secret for this job is enough.
    if given.hosts is None and given.join is None and not names_itself:
        options = {
            "--self": given.own_name, "--port": given.port, "--secret-file": given.secret_file,
            "--min-hosts": given.min_hosts, "--place": given.place, "--store": given.store, "--job": given.job,
        }  # fmt: skip
        for name, value in options.items():
            if value is not None:
                raise UsageError(
                    f"{name} {value}: is about the hosts of a job; give --hosts HOST:SLOTS,..., or --self HOST:SLOTS, "
                    "too"
                )
        return Hosting((Host(_ALONE, maximum, 0),), 0, secrets.token_hex(4), secrets.token_hex(32))
    port, secret = _PORT if given.port is None else given.port, _secret(given.secret_file, environment)
    if given.hosts is None:
        return _unlisted(given, port, secret, size=size, attachment=attachment)
    if given.join is not None or names_itself:
        option = f"--join {given.join}" if given.join is not None else f"--self {given.own_name}"
        raise UsageError(
            f"--hosts {given.hosts} and {option}: a host is in the list (--hosts, --self HOST) or in none (--self "
            "HOST:SLOTS, with --join to join a job); give one of the two"
        )
    hosts = parse_hosts(given.hosts, port=port)
    min_hosts = _min_hosts(given, hosts, size=size)
    if len(hosts) > 1:
        _check_reach(hosts, attachment=attachment, option="--hosts")
    index = own_index(hosts, given.own_name, local_addresses=local_addresses())
    # Several hosts cannot agree on a random secret; a single host generates one.
    if secret is None and len(hosts) > 1:
        raise UsageError(f"several hosts need a secret that they share; {_HOW}")
    store, name = _store(given), secrets.token_hex(4)
    if store is not None and len(hosts) == 1:
        raise UsageError(
            f"--store {given.store}: decides which of several hosts leads, and --hosts names only one; if others join, "
            "give --self HOST:SLOTS on each, and no --hosts"
        )
    return Hosting(hosts, index, name, secret or secrets.token_hex(32), min_hosts=min_hosts, store=store)


def _store(given: argparse.Namespace) -> StoreAddress | None:
    if given.store is None and given.job is None:
        return None
    if given.store is None or given.job is None:
        raise UsageError(
            "--store and --job belong together: --store etcd://HOST:PORT --job NAME, with a NAME that no other job in "
            "this etcd has"
        )
    return parse_store(given.store, given.job)


def _unlisted(given: argparse.Namespace, port: int, secret: str | None, *, size: int, attachment: str) -> Hosting:
    """The hosting of a host that no list names: it joins a job with ``--join``; else it founds a job or, with
    ``--store``, joins the one that has its name there."""
    if given.own_name is None or ":" not in given.own_name:
        raise UsageError(f"--join {given.join}: give this host's name and its slots too, as in --self 10.0.0.3:2")
    store = _store(given)
    own = parse_hosts(given.own_name, port=port)
    if len(own) > 1:
        raise UsageError(f"--self {given.own_name}: must be one host, HOST:SLOTS")
    if secret is None:
        raise UsageError(f"hosts that join a job need the secret of the job; {_HOW}")
    # The host that leads the job may be on another machine.
    if store is not None:
        _check_reach(own, attachment=attachment, option="--self")
    if given.join is None:
        min_hosts = _min_hosts(given, own, size=size)
        return Hosting(own, 0, secrets.token_hex(4), secret, min_hosts=min_hosts, store=store)
    others = tuple(_address(word.strip(), port) for word in given.join.split(","))
    if any(other.address == own[0].address for other in others):
        raise UsageError(f"--join {given.join}: names this host itself; name hosts that are in the job")
    _check_reach((*own, *others), attachment=attachment, option="--self and --join")
    return Hosting(own, 0, "", secret, tuple(other.address for other in others), store=store)


def _address(word: str, port: int) -> Host:
    """The host of an address ``HOST[:PORT]``, without slots."""
    name, _, number = word.partition(":")
    if not name or ":" in number:
        raise UsageError(
            f"--join {word}: is no HOST[:PORT]; write addresses or names of hosts, as in 10.0.0.1,10.0.0.2 (no IPv6 "
            "addresses)"
        )
    if number and not (number.isdecimal() and 1 <= int(number) <= _HIGHEST_PORT):
        raise UsageError(f"--join {word}: the port must be from 1 to {_HIGHEST_PORT}, as in 10.0.0.1:{_PORT}")
    [host] = parse_hosts(f"{name}:1", port=int(number) if number else port)
    return host


def _min_hosts(given: argparse.Namespace, hosts: Sequence[Host], *, size: int) -> int:
    """The value of ``--min-hosts``, 0 if it is not given; refuses more first peers than slots."""
    slots, number = sum(host.slots for host in hosts), given.min_hosts
    if number is not None and number < 1:
        raise UsageError(f"--min-hosts {number}: must be 1 or more")
    # Hosts that no list names bring slots of their own.
    if size > slots and (number or 0) <= len(hosts):
        names = given.hosts if given.hosts is not None else given.own_name
        raise UsageError(
            f"-np {size}: {names} has room for {counted(slots, 'peer')}; give the hosts more slots, or the job fewer "
            "peers, or begin when hosts have joined (--min-hosts)"
        )
    return number or 0


def _check_reach(hosts: Sequence[Host], *, attachment: str, option: str) -> None:
    """Refuses hosts whose peers could not reach each other."""
    # Peers on one machine reach each other by any address.
    if on_one_machine(hosts):
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
                f"{option}: {host.name} is {found} on this machine, where no other host can reach it; name the host by "
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
