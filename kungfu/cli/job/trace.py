"""``kungfu profile --trace``: records TensorFlow profiler traces of peers of a running job, for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from kungfu.errors import KungfuError, UsageError
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.job_file import read_job_file
from kungfu.runtime.job_api.status import PeerStatus

_LONGEST_S = 600.0
# Seconds to write the files after the trace: some megabytes for each second of a trace with large steps.
_WRITING_S = 120.0


def write_traces(
    folder: Path, *, seconds: float, peers: Sequence[int] | None, target: Path | None, form: Literal["text", "json"]
) -> int:
    """Makes peers record a profile at the same time, and prints the folders of the files.

    Args:
        peers: The ids of the peers; ``None`` for all peers in the view.
        target: The folder for the traces, on the host of each peer; ``None`` for a folder within the job's folder.

    Returns:
        The exit code: 0, or 1 if a peer could not be traced.
    """
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"--seconds {seconds:g}: must be above 0, and {_LONGEST_S:g} at most")
    chosen, secret = _chosen(folder, peers), read_job_file(folder).secret
    parent = (target or folder / "trace" / time.strftime("%Y%m%d-%H%M%S")).absolute()

    def traced(peer: PeerStatus) -> str:
        return _write_trace(peer, seconds=seconds, folder=parent / f"peer-{peer.id}", secret=secret)

    with ThreadPoolExecutor(len(chosen)) as calls:
        errors = dict(zip([peer.id for peer in chosen], calls.map(traced, chosen), strict=True))
    _print(parent, errors, form=form)
    return 1 if any(errors.values()) else 0


def _chosen(folder: Path, peers: Sequence[int] | None) -> list[PeerStatus]:
    """The peers with these ids; without ids all peers of the view."""
    with connected(folder) as job:
        members = {peer.id: peer for peer in job.status().peers if peer.address}
    wanted = list(dict.fromkeys(members if peers is None else peers))
    if strange := [str(peer) for peer in wanted if peer not in members]:
        there = ", ".join(map(str, members)) or "none yet"
        raise UsageError(f"--peers {' '.join(strange)}: not in the view, whose peers are {there}")
    if not wanted:
        raise UsageError(f"{folder}: the job does not train yet; trace it once its first view is in force")
    return [members[peer] for peer in wanted]


def _write_trace(peer: PeerStatus, *, seconds: float, folder: Path, secret: str) -> str:
    """Makes a peer write its trace; returns the error as text, which is empty on success."""
    request = pb.TraceRequest(seconds=seconds, folder=str(folder))
    try:
        with rpc.connect(peer.address, secret=secret) as channel:
            call = PeerServiceStub(channel).WriteTrace
            reply = rpc.call(call, request, deadline_s=seconds + _WRITING_S, what=f"peer {peer.id}", peer=peer.id)
    # The peer was lost or has left meanwhile.
    except KungfuError as error:
        return str(error)
    return str(reply.error)


def _print(parent: Path, errors: Mapping[int, str], *, form: Literal["text", "json"]) -> None:
    if form == "json":
        peers = [{"id": peer, "folder": str(parent / f"peer-{peer}"), "error": why} for peer, why in errors.items()]
        print(json.dumps({"folder": str(parent), "peers": peers}, indent=2))
        return
    console = Console(highlight=False)
    for peer, why in errors.items():
        line = f"peer {peer} was not traced: {why}" if why else f"peer {peer}: {parent / f'peer-{peer}'}"
        console.print(Text(line), soft_wrap=True)
    if not all(errors.values()):
        shows = f"`tensorboard --logdir {parent}` shows them, with the package tensorboard-plugin-profile"
        console.print(Text(shows), soft_wrap=True)
