"""The mesh of sockets, its peers in threads of this process."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError
from kungfu.runtime.attachment.handshake import Membership
from kungfu.runtime.attachment.mesh import Mesh, meet

JOB = f"test-mesh-{os.getpid()}"


def member(rank: int, *, size: int, view: int) -> Membership:
    return Membership(job=JOB, view=view, rank=rank, size=size, secret=b"secret")


def meet_all(members: list[Membership], *, deadline_s: float = 10.0) -> list[Future[Mesh]]:
    with ThreadPoolExecutor(len(members)) as threads:
        return [threads.submit(meet, me, deadline_s=deadline_s) for me in members]


def close(meshes: list[Mesh]) -> None:
    for mesh in meshes:
        for connection in mesh.values():
            connection.close()


def listening() -> list[str]:
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if JOB in line]


def test_each_peer_is_connected_to_each_other() -> None:
    meshes = [met.result() for met in meet_all([member(rank, size=4, view=1) for rank in range(4)])]
    for rank, mesh in enumerate(meshes):
        assert set(mesh) == set(range(4)) - {rank}
        for other, connection in mesh.items():
            connection.sendall(bytes([rank, other]))
    for rank, mesh in enumerate(meshes):
        for other, connection in mesh.items():
            assert connection.recv(2) == bytes([other, rank])
    close(meshes)


def test_nothing_is_left_of_the_addresses() -> None:
    close([met.result() for met in meet_all([member(rank, size=2, view=2) for rank in range(2)])])
    assert listening() == []


def test_the_deadline_names_exactly_the_ranks_that_did_not_come() -> None:
    met = meet_all([member(rank, size=4, view=3) for rank in (0, 2)], deadline_s=0.3)
    for outcome in met:
        with pytest.raises(DeadlineExceeded, match=r"waited 0\.3 s for rank 1, rank 3 to meet in view 3 of job"):
            outcome.result()
    assert listening() == []


def test_a_peer_with_another_secret_is_refused_and_the_reason_reported() -> None:
    right, wrong = member(0, size=2, view=4), replace(member(1, size=2, view=4), secret=b"guess")
    met = meet_all([right, wrong], deadline_s=0.5)
    with pytest.raises(DeadlineExceeded, match=r"for rank 1 to meet .*; refused 1 connections, the last because"):
        met[0].result()
    with pytest.raises(PeerFailure, match=r"who listens as rank 0 .* has not proved that it knows the job's secret"):
        met[1].result()


def test_strangers_loud_or_silent_do_not_stop_the_meeting() -> None:
    first, second = member(0, size=2, view=5), member(1, size=2, view=5)
    loud, silent = (socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2))
    with ThreadPoolExecutor(2) as threads, loud, silent:
        met = [threads.submit(meet, first, deadline_s=2.0)]
        for stranger in (loud, silent):
            while stranger.connect_ex(f"\0kungfu-{JOB}-5-0"):
                pass  # the listener is about to come
        loud.sendall(b"let me in " * 10)
        met.append(threads.submit(meet, second, deadline_s=2.0))
        close([outcome.result() for outcome in met])


def test_a_second_process_as_the_same_peer_is_refused() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(f"\0kungfu-{JOB}-6-0")
        with pytest.raises(UsageError, match=r"cannot listen as rank 0 of view 6 .*another process"):
            meet(member(0, size=2, view=6), deadline_s=1.0)


def test_a_name_of_a_job_that_fits_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match=r"at most 64 bytes, .* has 65"):
        meet(replace(member(0, size=2, view=7), job="j" * 65), deadline_s=1.0)
