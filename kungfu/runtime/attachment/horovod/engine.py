"""Horovod's engine in this process: loaded, started for a view, stopped. Nothing else of kungfu talks to it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import tensorflow as tf

from kungfu.errors import InternalError, UsageError
from kungfu.runtime.attachment.horovod.place import Place

__all__ = ["load", "start", "stop"]


def load() -> Any:
    """Horovod's TensorFlow ops; loaded at the first call.

    Raises: ``UsageError`` where horovod is not installed, or was compiled for another TensorFlow.
    """
    try:
        import horovod.tensorflow.mpi_ops as ops
    except (ImportError, OSError, tf.errors.OpError) as error:
        raise UsageError(
            f"the attachment 'horovod' cannot be loaded ({error}); it has to be compiled against TensorFlow "
            f"{tf.__version__}, which is in use: run `make setup`, or choose the attachment 'local' on one machine"
        ) from error
    return ops


def start(place: Place, *, store: str, deadline_s: float) -> None:
    """Connects this process to the peers of a view, who all call this at the same time.

    ``store``: ``HOST:PORT`` at which they meet. ``deadline_s``: seconds that a peer waits for another, at the meeting
    and in every message. Horovod ends the process if a peer dies during the meeting, a few tens of milliseconds.

    Raises: ``InternalError`` where Horovod says that it cannot start.
    """
    ops = load()
    with _exported(_variables(place, store=store, deadline_s=deadline_s)):
        try:
            ops.init()
        except ValueError as error:
            raise InternalError(f"horovod cannot start as rank {place.rank} of {place.size}: {error}") from error


def stop() -> None:
    """Disconnects; the other peers' engines stop too. Idempotent."""
    load().shutdown()


def _variables(place: Place, *, store: str, deadline_s: float) -> dict[str, str]:
    host, _, port = store.rpartition(":")
    variables = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_HOSTNAME": place.host,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        **_deadlines(deadline_s),
    }
    # What only the user can know about the machine stays as the user has set it.
    wishes = {"HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": _interface(place.host)}
    return variables | {name: value for name, value in wishes.items() if value and name not in os.environ}


def _deadlines(deadline_s: float) -> dict[str, str]:
    """Horovod's three clocks, in whole seconds, so that a peer is given up about ``deadline_s`` after it fell silent.

    A dead connection is seen by Gloo. A live peer that does not come to a message is seen by the stall check, which
    looks once a period: it forgets what it had remembered of the message, warns, and at last shuts down, so that it
    takes up to three periods longer than it is told.

    >>> _deadlines(60)["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]
    '39'
    """
    whole = max(1, math.ceil(deadline_s))
    period = max(1, whole // 8)
    return {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(whole),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(period),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(max(period, whole - 3 * period)),
    }


def _interface(host: str) -> str:
    """The name of the network interface that has the address of ``host``; empty for none, and Horovod looks itself."""
    try:
        wanted = socket.gethostbyname(host)
    except OSError:
        return ""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(a.address == wanted for a in addresses)), "")


@contextmanager
def _exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Puts variables into the environment, the only place where Horovod looks, for as long as it looks."""
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
