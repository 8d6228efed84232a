"""The mesh of sockets, its peers in threads of this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kungfu.errors import DeadlineExceeded, UsageError
from kungfu.runtime.attachment.mesh import Mesh, connect_mesh
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.ipc.unix_socket import addresses
from tests.runtime.expiring import expired_at

JOB = f"test-mesh-{os.getpid()}"


def member(rank: int, *, size: int, view: int) -> Credentials:
    return Credentials(job=JOB, view=view, rank=rank, size=size, secret=b"secret")


def meet_all(members: list[Credentials], *, deadline_s: float = 60.0) -> list[Future[Mesh]]:
    with ThreadPoolExecutor(len(members)) as threads:
        return [threads.submit(connect_mesh, me, deadline_s=deadline_s) for me in members]


def close(meshes: list[Mesh]) -> None:
    for mesh in meshes:
        for connection in mesh.values():
            connection.close()


def test_each_peer_is_connected_to_each_other() -> None:
    meshes = [connected.result() for connected in meet_all([member(rank, size=4, view=1) for rank in range(4)])]
    for rank, mesh in enumerate(meshes):
        assert set(mesh) == set(range(4)) - {rank}
        for other, connection in mesh.items():
            connection.sendall(bytes([rank, other]))
    for rank, mesh in enumerate(meshes):
        for other, connection in mesh.items():
            assert connection.recv(2) == bytes([other, rank])
    close(meshes)


def test_the_deadline_names_exactly_the_ranks_that_did_not_come() -> None:
    place, errors = "for rank 1, rank 3 to meet in view 3 of job", list[BaseException | None]()

    def meet(deadline_s: float) -> None:
        connected = meet_all([member(rank, size=4, view=3) for rank in (0, 2)], deadline_s=deadline_s)
        errors[:] = [outcome.exception() for outcome in connected]
        raise next((error for error in errors if error is not None and place not in str(error)), errors[0]) or OSError

    deadline_s, _ = expired_at(place, meet)
    assert [type(error) for error in errors] == [DeadlineExceeded] * 2
    assert all(f"waited {deadline_s:.1f} s {place}" in str(error) for error in errors)
    assert JOB not in Path("/proc/net/unix").read_text(), "nobody listens any more"


def test_a_peer_with_another_secret_finds_nobody() -> None:
    right, wrong = member(0, size=2, view=4), replace(member(1, size=2, view=4), secret=b"guess")
    connected = meet_all([right, wrong], deadline_s=0.5)
    for outcome, missing in zip(connected, (1, 0), strict=True):
        with pytest.raises(DeadlineExceeded, match=rf"waited 0\.5 s for rank {missing} to meet in view 4 of job '.*'$"):
            outcome.result()


def test_strangers_loud_or_silent_do_not_stop_the_meeting() -> None:
    def meet(deadline_s: float) -> None:
        first, second = member(0, size=2, view=5), member(1, size=2, view=5)
        loud, silent = (socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2))
        with ThreadPoolExecutor(2) as threads, loud, silent:
            # The silent one is waited for up to half of the deadline.
            connected = [threads.submit(connect_mesh, first, deadline_s=deadline_s)]
            for stranger in (loud, silent):
                while stranger.connect_ex(addresses(JOB, "5-0", secret=b"secret")[0]):
                    time.sleep(0.001)  # the listener is about to come
            loud.sendall(b"let me in " * 10)
            connected.append(threads.submit(connect_mesh, second, deadline_s=deadline_s))
            close([outcome.result() for outcome in connected])

    try:
        meet(6.0)
    except DeadlineExceeded:  # on a busy machine
        meet(60.0)


def test_the_names_of_a_job_are_not_known_without_its_secret() -> None:
    first = member(0, size=2, view=6)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger, ThreadPoolExecutor(1) as threads:
        stranger.bind(f"\0kungfu-{JOB}-6-0")  # what somebody would take who sees the names of the views before
        connected = threads.submit(connect_mesh, first, deadline_s=60.0)
        close([connect_mesh(member(1, size=2, view=6), deadline_s=60.0), connected.result()])


@pytest.mark.parametrize("listens", [True, False], ids=["by one who listens", "by one who does not"])
def test_a_name_that_is_taken_by_another_user_is_no_end(listens: bool) -> None:
    with taken(addresses(JOB, "8-0", secret=b"secret")[:2], listens=listens):
        connected = meet_all([member(rank, size=3, view=8) for rank in range(3)])
        close([outcome.result() for outcome in connected])


@contextmanager
def taken(names: Sequence[str], *, listens: bool) -> Iterator[None]:
    """The names are another process's: of another user where this one may make such."""
    lines = (
        "import os, socket, sys",
        "os.setuid(65534) if os.geteuid() == 0 else None",
        "sockets = [socket.socket(socket.AF_UNIX) for _ in sys.argv[2:]]",
        "[one.bind(chr(0) + name) for one, name in zip(sockets, sys.argv[2:])]",
        "[one.listen(8) for one in sockets if sys.argv[1] == 'listens']",
        "print('taken', flush=True)",
        "sys.stdin.read()",
    )
    # A process of the same user that listens is a peer that has not proved itself, and ends the meeting as such.
    mode = "listens" if listens and os.geteuid() == 0 else "does not"
    command = [sys.executable, "-c", "\n".join(lines), mode, *(name[1:] for name in names)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        yield
        process.kill()


def test_a_peer_for_whom_every_name_is_taken_says_so() -> None:
    with ExitStack() as stack:
        for address in addresses(JOB, "9-0", secret=b"secret"):
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)).bind(address)
        with pytest.raises(UsageError, match=r"cannot listen as rank 0 of view 9 .*another process"):
            connect_mesh(member(0, size=2, view=9), deadline_s=1.0)


def test_a_name_of_a_job_that_fits_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match=r"at most 64 bytes, .* has 65"):
        connect_mesh(replace(member(0, size=2, view=7), job="j" * 65), deadline_s=1.0)
