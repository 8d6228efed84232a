"""Horovod's engine in this process: loads, starts and stops it, and reads its errors.

No other module of kungfu calls the engine. Horovod's ops fail with the same TensorFlow error code for nearly every
cause, and only the error's text describes the cause. So this module reads the text of an error to find its cause; all
other modules use the fields of errors.
"""

from __future__ import annotations

import atexit
import ctypes
import ipaddress
import math
import os
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import tensorflow as tf

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure, UsageError
from kungfu.runtime.attachment.horovod.key_value_store import listens_at
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason

_LOOK_S = 0.1  # between two checks of whether the start should be given up
_stopping = threading.Lock()
_connections = set[int]()  # of the engine, by the inode numbers of their sockets

_HOROVOD = re.compile(r"horovod has been shut down|horovod has not been initialized|mismatched", re.IGNORECASE)
_MACHINE = re.compile(r"Unable to find (?:address|interface)[^\n]*")  # the interface that the engine should use
_GLOO = re.compile(r"(?:\[[^]\n]*/gloo/[^]\n]*\] )+([^\n]*)")  # the error on every peer whose connection fails


@dataclass(frozen=True)
class Topology:
    """Horovod's ranks of one peer, and the sizes of the groups that they refer to, named after Horovod's settings.

    ``rank`` is the peer's position in the ring, which visits one host after the other; a view's rank may differ.
    ``cross_rank`` and ``cross_size`` refer to the peers with the same local rank on all hosts.
    """

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def topology_of(rank: int, *, addresses: Sequence[str]) -> Topology:
    """The position of the peer of ``rank`` in a view; ``addresses`` are those of the peers, "host:port" in rank order.

    Gloo's all-reduce is a ring in the order of Horovod's ranks. Horovod's ranks are therefore those of the peers sorted
    by host, hosts in the order of their first peers: each message then enters and leaves a host once, although peers
    that join and leave mix the hosts in a view. With P mixed peers on each host, a link would carry up to P times more.

    Raises ``UsageError`` for a rank outside the view, or an address without a port.

    >>> topology_of(2, addresses=["a:1", "b:1", "a:2"])
    Topology(hostname='a', rank=1, size=3, local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    """
    if not 0 <= rank < len(addresses):
        raise UsageError(f"rank {rank} is not in a view of {len(addresses)} peers; allowed is 0..{len(addresses) - 1}")
    hosts = [_host(address) for address in addresses]
    mine = hosts[rank]
    local_rank = hosts[:rank].count(mine)
    # The hosts that have a peer of this local rank, in the order of their first peers.
    across = [host for host in dict.fromkeys(hosts) if hosts.count(host) > local_rank]
    return Topology(
        hostname=mine,
        rank=sorted(range(len(hosts)), key=lambda one: hosts.index(hosts[one])).index(rank),
        size=len(hosts),
        local_rank=local_rank,
        local_size=hosts.count(mine),
        cross_rank=across.index(mine),
        cross_size=len(across),
    )


def _host(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise UsageError(f"a peer's address is {address!r}; expected is HOST:PORT, for example 10.0.0.7:4000")
    return host


def load() -> Any:
    """Horovod's TensorFlow ops; loaded by the first call.

    Raises:
        UsageError: Horovod is not installed, or was compiled for another TensorFlow or without kungfu's changes.
    """
    try:
        import horovod.tensorflow.mpi_ops as ops

        ops._basics.MPI_LIB_CTYPES.horovod_init_error.restype = ctypes.c_char_p
    except (ImportError, OSError, AttributeError, tf.errors.OpError) as error:
        raise UsageError(
            f"the attachment 'horovod' cannot be loaded ({error}); it has to be compiled against TensorFlow "
            f"{tf.__version__}, which is in use: run `python -m kungfu.native.horovod`, or choose the attachment "
            "'local' on one machine"
        ) from error
    return ops


def start(
    mine: Topology, *, store: str, deadline_s: float, view: int = 0, abandoned: AbandonReason = no_abandon_reason
) -> None:
    """Connects this process to the peers of a view, which all call this function at the same time.

    Args:
        mine: This peer's ranks, and the sizes of its groups: see `topology_of`.
        store: The address of the store used for the rendezvous.
        deadline_s: The longest wait of an engine for another engine's answer, at the start and in every later message,
            in seconds, rounded up. It does not limit the wait for a peer whose engine answers but whose step is late.
        view: The number of the view, for errors.
        abandoned: Returns a failure once waiting for the others is pointless; called in a separate thread.

    Raises:
        PeerFailure: A peer died or left before all were connected, or ``abandoned`` returned this failure.
        DeadlineExceeded: The engines were not connected in time.
        UsageError: The others could not reach this engine, see ``check_reach``.
        InternalError: Horovod cannot start on this machine.
    """
    ops, started = load(), time.monotonic()
    _ignore_sigpipe()
    check_reach(mine, name=socket.gethostname())

    def given_up() -> KungfuError | None:
        waited_s = time.monotonic() - started
        if (failure := abandoned()) is not None or waited_s <= deadline_s:
            return failure
        text = f"waited {waited_s:.1f} s for the engines of the {mine.size} peers of view {view} to connect"
        return DeadlineExceeded(text, waiting_for=(), waited_s=waited_s, view=view)

    with _exported(_variables(mine, store=store, deadline_s=deadline_s)), _watched(ops, given_up):
        before = set(_sockets())
        try:
            _init(ops)
        except ValueError as error:
            said = ops._basics.MPI_LIB_CTYPES.horovod_init_error().decode(errors="replace")
            stop()
            raise given_up() or read_start_failure(said, view=view) from error
        _connections.clear()
        _connections.update(set(_sockets()) - before)


@contextmanager
def _watched(ops: Any, given_up: Callable[[], KungfuError | None]) -> Iterator[None]:
    """Watches the start of Horovod in the block: ends its waits for peers once ``given_up`` returns a reason."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if given_up() is not None:
                ops._basics.MPI_LIB_CTYPES.horovod_give_up_init()

    thread = threading.Thread(target=watch, name="kungfu-horovod-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def check_reach(mine: Topology, *, name: str) -> None:
    """Raises ``UsageError`` if the peers of other hosts could not reach this machine's engine by its ``name``.

    Horovod 0.28.1 connects its engines twice: on the given interface, and for its process sets at the address of the
    machine's own name. If that address is a loopback address, as in Debian's ``/etc/hosts``, all processes fail.
    """
    # All peers are on this machine, or the whole job uses loopback addresses, or the name can be reached.
    if mine.local_size == mine.size or _is_loopback(mine.hostname) or not _is_loopback(name):
        return
    raise UsageError(
        f"the name of this machine, {name}, stands for a loopback address ({socket.gethostbyname(name)}), and there "
        f"horovod would have the peers of other hosts look for this one; let it stand for {mine.hostname}: write "
        f"'{mine.hostname} {name}' into /etc/hosts, in place of the line that says otherwise"
    )


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(name)).is_loopback
    except OSError:
        return False


def stop() -> None:
    """Stops the engine; peers that wait for this peer notice this at once, and their engines stop too. Idempotent.

    Runs in one thread at a time: if two threads stopped Horovod at once, one of them would wait forever.
    """
    with _stopping:
        load().shutdown()


def abort() -> None:
    """Stops the engine at once, even while it waits for a silent machine, which closes no connection.

    ``stop`` alone waits until the engine's message has failed, up to the deadline of ``start``. So the engine's own
    connections are shut down first. They are the sockets that this process opened during ``start``; if another thread
    happened to open a connection to the agent or to a peer at that time, gRPC connects again.
    """
    for number, descriptor in _sockets().items():
        if number in _connections:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                if os.fstat(connection.fileno()).st_ino == number:  # not closed and reused meanwhile
                    connection.shutdown(socket.SHUT_RDWR)
    stop()


def _ignore_sigpipe() -> None:
    """Keeps a connection that a lost peer has closed from ending this process: Gloo writes without ``MSG_NOSIGNAL``.

    Python ignores SIGPIPE from its start, but programs restore the default action, so that ``| head`` ends them. This
    thread may not call ``signal.signal``, because it may not be the main thread. A handler of the program stays.
    """
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL:
        set_action = ctypes.CDLL(None).signal
        set_action.argtypes, set_action.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        set_action(signal.SIGPIPE, int(signal.SIG_IGN))


def _sockets() -> dict[int, int]:
    """A descriptor of every socket of this process, by the socket's inode number."""
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # closed meanwhile, like the descriptor of the list itself
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = descriptor
    return found


def _init(ops: Any) -> None:
    """Starts Horovod, and replaces its exit handler by ``stop``, so that only one thread ever stops it."""
    try:
        ops.init()
    finally:
        atexit.unregister(ops.shutdown)
    atexit.unregister(stop)
    atexit.register(stop)


def _variables(mine: Topology, *, store: str, deadline_s: float) -> dict[str, str]:
    where = listens_at(store)
    host, _, port = where.rpartition(":")
    # Horovod requests http://ADDR:PORT/scope/key: with the store's token in ADDR, PORT becomes a part of the path.
    address = host if store == where else store
    variables = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        **{f"HOROVOD_{name.upper()}": str(value) for name, value in vars(mine).items()},
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, math.ceil(deadline_s))),
        # Horovod's stall check never finds a rank under Gloo, since its list of ranks stays empty.
        "HOROVOD_STALL_CHECK_DISABLE": "1",
    }
    # These depend on the machine, so the user's values take precedence.
    wanted = {"HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": interface_of(mine.hostname)}
    return variables | {name: value for name, value in wanted.items() if value and name not in os.environ}


def interface_of(host: str) -> str:
    """The network interface with the address of ``host``; empty if there is none, so that Horovod chooses an interface.

    Every loopback address belongs to the loopback interface, although the interface lists only the first.
    """
    try:
        wanted = ipaddress.ip_address(socket.gethostbyname(host))
    except OSError:
        return ""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if any(_has(entry, wanted) for entry in entries)), "")


def _has(entry: Any, wanted: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if entry.family != socket.AF_INET:  # an IPv6 or hardware address: Horovod's Gloo needs IPv4
        return False
    address = ipaddress.ip_address(entry.address)
    return address == wanted or (address.is_loopback and wanted.is_loopback)


@contextmanager
def _exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables during the block: Horovod reads its settings only from the environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def read_failure(text: str, *, gave_up: KungfuError | None = None) -> KungfuError | None:
    """The error described by a text of TensorFlow; ``None`` if the text is not about a message of Horovod.

    If this peer itself ended the wait, the error is ``gave_up``, since Horovod's text reports only a shutdown.

    >>> read_failure("Horovod has been shut down. ...")
    PeerFailure('a peer died or left, and the all-reduce with it (Horovod has been shut down)')
    """
    horovod, gloo = _HOROVOD.search(text), _GLOO.search(text)
    if horovod is None and gloo is None:
        return None
    # This peer stopped the engine: the deadline of the message expired, or the job has given up a peer.
    if gave_up is not None:
        return gave_up
    # The tensors of two peers have different shapes or types: not all run the same program.
    said = horovod[0] if horovod is not None else gloo[1] if gloo is not None else ""
    if said.lower() == "mismatched":
        return InternalError(f"peers differ: {text.splitlines()[0]}")
    # The engine or connection of another peer has ended; Horovod does not name the peer.
    return PeerFailure(f"a peer died or left, and the all-reduce with it ({said})")


def read_start_failure(text: str, *, view: int) -> KungfuError:
    """The error for a failed start of Horovod, caused by this machine or by another peer.

    >>> read_start_failure("[a/gloo/transport/tcp/pair.cc:598] Connection closed by peer [::1]:4", view=3)
    PeerFailure('a peer of view 3 died or left while the peers connected (Connection closed by peer [::1]:4)')
    """
    # This machine lacks the address or interface that the engine should use; other peers are not at fault.
    if (machine := _MACHINE.search(text)) is not None:
        return InternalError(f"horovod cannot start on this machine, for view {view}: {machine[0]}")
    gloo = _GLOO.search(text)
    said = gloo[1] if gloo is not None else text
    return PeerFailure(f"a peer of view {view} died or left while the peers connected ({said})", view=view)
