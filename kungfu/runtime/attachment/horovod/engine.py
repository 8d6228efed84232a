"""Horovod's engine in this process: loaded, started for a view, stopped. Nothing else of kungfu talks to it."""

from __future__ import annotations

import atexit
import ipaddress
import math
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import tensorflow as tf

from kungfu.errors import InternalError, UsageError
from kungfu.runtime.attachment.horovod.key_value_store import listens_at
from kungfu.runtime.attachment.horovod.topology import Topology, topology_of

__all__ = ["abandon", "check_reach", "interface_of", "load", "start", "stop"]

_stopping = threading.Lock()


def load() -> Any:
    """Horovod's TensorFlow ops; loaded at the first call.

    Raises:
        UsageError: Horovod is not installed, or was compiled for another TensorFlow.
    """
    try:
        import horovod.tensorflow.mpi_ops as ops
    except (ImportError, OSError, tf.errors.OpError) as error:
        raise UsageError(
            f"the attachment 'horovod' cannot be loaded ({error}); it has to be compiled against TensorFlow "
            f"{tf.__version__}, which is in use: run `python -m kungfu.native.horovod`, or choose the attachment "
            "'local' on one machine"
        ) from error
    return ops


def start(mine: Topology, *, store: str, deadline_s: float) -> None:
    """Connects this process to the peers of a view, who all call this at the same time.

    Args:
        mine: This peer's place among the hosts.
        store: The address of the store at which they meet.
        deadline_s: Seconds, rounded up to whole ones, that an engine waits for another to answer, at the meeting and
            ever after. It does not bound the wait for a peer whose engine answers but whose step does not come.

    Raises:
        UsageError: The others could not reach this engine, see ``check_reach``.
        InternalError: Horovod says that it cannot start.

    Undefined:
        Horovod ends the process if a peer dies during the meeting, a few tens of milliseconds.
    """
    ops = load()
    check_reach(mine, name=socket.gethostname())
    with _exported(_variables(mine, store=store, deadline_s=deadline_s)):
        try:
            _init(ops)
        except ValueError as error:
            raise InternalError(f"horovod cannot start as rank {mine.rank} of {mine.size}: {error}") from error


def check_reach(mine: Topology, *, name: str) -> None:
    """Refuses a machine whose engine the peers of other hosts could not reach.

    Horovod 0.28.1 connects its engines twice: on the interface that it is told, and for its process sets at the address
    that the machine's own name stands for. Where that is a loopback address, as Debian's ``/etc/hosts`` has it, the
    second time ends all processes with "Connection refused".

    Args:
        mine: This peer's place among the hosts.
        name: This machine's own name.

    Raises:
        UsageError: Its name stands for a loopback address, and there are other hosts.
    """
    # All peers are on this machine, or the whole job is on loopback addresses, or the name can be reached.
    if mine.local_size == mine.size or _is_loopback(mine.host) or not _is_loopback(name):
        return
    raise UsageError(
        f"the name of this machine, {name}, stands for a loopback address ({socket.gethostbyname(name)}), and there "
        f"horovod would have the peers of other hosts look for this one; let it stand for {mine.host}: write "
        f"'{mine.host} {name}' into /etc/hosts, in place of the line that says otherwise"
    )


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(name)).is_loopback
    except OSError:
        return False


def stop() -> None:
    """Disconnects together with the other peers, whose engines stop too. Idempotent.

    In one thread at a time: of two that stop Horovod at once both join a thread of its, and one of them for ever.
    """
    with _stopping:
        load().shutdown()


def abandon() -> None:
    """Disconnects after a failure, so that the others hear of it at once. Idempotent.

    A stopped engine keeps its connections until it starts again, and a peer that waits at one of them would wait for
    its whole deadline. So it starts again, alone.

    Cost:
        A few milliseconds.
    """
    stop()
    alone = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": None, "HOROVOD_GLOO_IFACE": interface_of("127.0.0.1")}
    with _exported(_variables(topology_of(0, addresses=["127.0.0.1:1"]), store=":0", deadline_s=1.0) | alone):
        _init(load())
    stop()


def _init(ops: Any) -> None:
    """Starts Horovod, and stops it at the end of the process as every other time, not by itself beside that."""
    try:
        ops.init()
    finally:
        atexit.unregister(ops.shutdown)
    atexit.unregister(stop)
    atexit.register(stop)


def _variables(mine: Topology, *, store: str, deadline_s: float) -> dict[str, str | None]:
    where = listens_at(store)
    host, _, port = where.rpartition(":")
    # Horovod asks http://ADDR:PORT/scope/key: with the store's token in ADDR, PORT becomes a part of the path.
    address = host if store == where else store
    variables: dict[str, str | None] = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_HOSTNAME": mine.host,
        "HOROVOD_RANK": str(mine.rank),
        "HOROVOD_SIZE": str(mine.size),
        "HOROVOD_LOCAL_RANK": str(mine.local_rank),
        "HOROVOD_LOCAL_SIZE": str(mine.local_size),
        "HOROVOD_CROSS_RANK": str(mine.cross_rank),
        "HOROVOD_CROSS_SIZE": str(mine.cross_size),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, math.ceil(deadline_s))),
        # It never finds anybody under Gloo: the list of ranks that it looks through stays empty.
        "HOROVOD_STALL_CHECK_DISABLE": "1",
    }
    # What only the user can know about the machine stays as the user has set it.
    wishes = {"HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": interface_of(mine.host)}
    return variables | {name: value for name, value in wishes.items() if value and name not in os.environ}


def interface_of(host: str) -> str:
    """The name of the network interface that has the address of ``host``.

    Every loopback address is the loopback interface's, which names only the first: left to itself Horovod would take
    another interface for them.

    Returns:
        The name; empty where no interface has the address, and Horovod looks itself.
    """
    try:
        wanted = ipaddress.ip_address(socket.gethostbyname(host))
    except OSError:
        return ""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if any(_has(entry, wanted) for entry in entries)), "")


def _has(entry: Any, wanted: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if entry.family != socket.AF_INET:  # an IPv6 or hardware address: Horovod's Gloo takes IPv4
        return False
    address = ipaddress.ip_address(entry.address)
    return address == wanted or (address.is_loopback and wanted.is_loopback)


@contextmanager
def _exported(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets variables of the environment, or removes them, for as long as Horovod looks, which looks nowhere else."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
