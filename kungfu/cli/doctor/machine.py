"""The checks of the machine: processors, memory, shared memory, descriptors, folders, ports, host name."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from kungfu.cli.doctor.finding import Finding
from kungfu.errors import KungfuError
from kungfu.event_log.values import counted
from kungfu.native import cache_folder
from kungfu.runtime.agent.supervisor.launch import count_gpus, threads_per_peer
from kungfu.runtime.agent.supervisor.slots import devices_of
from kungfu.runtime.hosts import addresses_of
from kungfu.runtime.ipc import memfd, rpc
from kungfu.runtime.settings import AttachmentName

_PEER_BYTES = 1 << 30  # roughly the memory of TensorFlow before there is a model
_DESCRIPTORS = 1024
_DISK_BYTES = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


def check_machine(*, slots: int, attachment: AttachmentName) -> Iterator[Finding]:
    """The findings about this machine."""
    yield _cores(slots)
    yield _devices(slots)
    yield _memory(free_memory_bytes(), slots=slots)
    yield _shared_memory()
    yield _descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from (_folder(name, path) for name, path in (("cache", cache_folder()), ("working folder", Path.cwd())))
    yield _port()
    yield _name(attachment=attachment)


def free_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """The memory that processes may still allocate: the machine's free memory, or less if its container allows less."""
    left = int(psutil.virtual_memory().available)
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    # No container limits the memory, or an older kernel has these files elsewhere.
    except OSError:
        return left
    return left if limit == "max" else min(left, max(0, int(limit) - int(used)))


def _cores(slots: int) -> Finding:
    cores, each = len(psutil.Process().cpu_affinity() or [0]), threads_per_peer(slots)
    found = Finding("cores", f"{cores} for {counted(slots, 'peer')}: {counted(each, 'thread')} each")
    return found.as_remark_if(cores < slots, "peers take turns on a core, and steps take longer: give fewer slots")


def _devices(slots: int) -> Finding:
    devices = devices_of(os.environ, gpus=count_gpus())
    if not devices:
        return Finding("devices", "the driver shows no GPU: without one peers train on the cores")
    found = Finding("devices", f"{len(devices)} for {counted(slots, 'peer')}: {', '.join(devices)}")
    return found.as_remark_if(len(devices) < slots, "several peers share a device: give as many slots as devices")


def _memory(free_bytes: int, *, slots: int) -> Finding:
    advice = "a peer takes about 1 GiB before it has a model: give fewer slots, or free some"
    found = Finding("memory", f"{free_bytes / 2**30:.1f} GiB free for {counted(slots, 'peer')}")
    return found.as_remark_if(free_bytes < slots * _PEER_BYTES, advice)


def _shared_memory() -> Finding:
    try:
        os.close(memfd.make(1 << 20))
    except OSError as error:
        return Finding(
            "shared memory", f"cannot be made: {error}", "problem",
            "the peers of a machine need memfd_create: Linux 3.17, and a container that allows it",
        )  # fmt: skip
    return Finding("shared memory", "can be made (memfd, no part of /dev/shm)")


def _descriptors(soft: int) -> Finding:
    if soft == resource.RLIM_INFINITY:
        return Finding("descriptors", "any number per process")
    found = Finding("descriptors", f"{soft} open files and sockets per process")
    return found.as_remark_if(soft < _DESCRIPTORS, f"`ulimit -n {_DESCRIPTORS}` before kungfu-run")


def _folder(name: str, path: Path) -> Finding:
    # The folder is created when needed, so its nearest existing parent must be writable.
    existing = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, f"{path} cannot be written", "problem", f"make it writable: ls -ld {existing}")
    free_bytes = psutil.disk_usage(str(existing)).free
    found = Finding(name, f"{path}, {free_bytes / 2**30:.1f} GiB free")
    advice = "records and checkpoints need room: free some, or take another folder"
    return found.as_remark_if(free_bytes < _DISK_BYTES, advice)


def _port() -> Finding:
    try:
        rpc.serve(host="127.0.0.1", secret="", threads=1).stop()
    except KungfuError as error:
        return Finding("ports", str(error), "problem", "peers and agents listen on free ports of 127.0.0.1")
    return Finding("ports", "a free one of 127.0.0.1 can be listened on")


def _name(*, attachment: AttachmentName) -> Finding:
    name = socket.gethostname()
    addresses = sorted(addresses_of(name))
    # Peers on other hosts connect to the address of this machine's own host name under Horovod.
    is_local = attachment == "horovod" and all(one.startswith("127.") for one in addresses)
    advice = f"write 'ADDRESS {name}' with its address on the network into /etc/hosts, if there are other hosts"
    return Finding("name", f"{name} is {', '.join(addresses) or 'no address'}").as_remark_if(is_local, advice)
