"""The local attachment between real processes. This file is also the program that each of them runs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from kungfu.runtime.ipc.handshake import Credentials
from kungfu.signal.operation.numpy_kernels import sum_of_squares
from tests.runtime.attachment.peer_process import DEADLINE_S, PeerProcess

pytestmark = pytest.mark.slow

# Peers by rank, view after view: the size falls and grows, and rank 0 moves from peer to peer.
VIEWS = ((0, 1, 2, 3), (2, 0, 1), (3, 1), (1, 3, 0, 2))
Peers = list[PeerProcess]
KINDS = (np.float16, bfloat16, np.float32, np.float64, np.int32, np.int64)
SHAPES = ((), (0, 3), (17,), (300, 70), (70_001,))


def draw(peer: int, view: int) -> list[np.ndarray]:
    """Tensors of all dtypes, their magnitudes spread so that the order of additions shows, down to subnormals."""
    rng = np.random.default_rng([peer, view])
    values = []
    for kind in KINDS:
        lowest = -45.0 if kind in (np.float32, bfloat16) else -7.5
        for shape in SHAPES:
            drawn = rng.standard_normal(shape) * 10.0 ** rng.uniform(lowest, 3.0, shape)
            values.append(np.asarray(drawn).astype(kind))
    return values


def draw_many() -> np.ndarray:
    """Numbers for several threads at once, of very different magnitudes."""
    rng, count = np.random.default_rng(7), 1_000_003
    return (rng.standard_normal(count) * 10.0 ** rng.uniform(-44.0, 3.0, count)).astype(np.float32)


def left_fold(values: list[np.ndarray]) -> np.ndarray:
    """The slow twin of the op."""
    total = values[0]
    for value in values[1:]:
        total = np.add(total, value, dtype=value.dtype)
    return np.asarray(total, dtype=values[0].dtype)


@contextmanager
def processes(*threads: int) -> Iterator[Peers]:
    """Processes with these numbers of threads; whatever still runs afterwards is killed."""
    peers = [PeerProcess(Path(__file__), threads=number) for number in threads]
    try:
        yield peers
    finally:
        for peer in peers:
            peer.kill()


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    """Four processes for all tests of this file, of which some may have been killed before."""
    with processes(1, 3, 1, 1) as started:
        yield started
        assert {one.end() for one in started if one.process.poll() is None and one not in BLOCKED} == {0}


BLOCKED: Peers = []  # they wait for their end


def test_sums_are_the_left_fold_under_one_trace_while_views_change(tmp_path: Path, peers: Peers) -> None:
    """They are so bit for bit."""
    for number, peer in enumerate(peers):
        peer.tell("views", peer=number, folder=str(tmp_path))
    assert [peer.hear() for peer in peers] == [1, 1, 1, 1]
    for view, members in enumerate(VIEWS):
        columns = zip(*(draw(peer, view) for peer in members), strict=True)
        expected = b"".join(left_fold(list(column)).tobytes() for column in columns)
        for peer in members:
            assert (tmp_path / f"{view}-{peer}").read_bytes() == expected, f"view {view}, peer {peer}"
    assert left_behind(str(tmp_path)) == []


def test_the_number_of_threads_changes_no_bit_of_a_norm(peers: Peers) -> None:
    for peer in peers[:2]:  # of one thread and of three
        peer.tell("norm")
    assert [peer.hear() for peer in peers[:2]] == [float(sum_of_squares(draw_many())).hex()] * 2


def test_a_killed_peer_is_named_by_every_survivor_at_once(tmp_path: Path, peers: Peers) -> None:
    for rank, peer in enumerate(peers[:3]):
        peer.tell("killed", peer=rank, folder=str(tmp_path))
    for peer in peers[:3]:
        assert peer.hear() == "ready"
    killed = time.monotonic()
    os.kill(peers[2].process.pid, signal.SIGKILL)
    reports = [peer.hear() for peer in peers[:2]]
    for report in reports:
        for failure in report["failures"]:
            assert failure["error"] == "UnavailableError"
            assert "kungfu: peer rank=2 died during gradients" in failure["text"]
        assert report["noticed"] - killed < 90.0  # of a deadline of 300
    assert left_behind(str(tmp_path)) == []


def test_late_is_not_dead_but_stopped_is_named_long_before_the_deadline(tmp_path: Path, peers: Peers) -> None:
    BLOCKED.append(peers[3])
    report = stopped([peers[0], peers[3]], tmp_path / "1", heartbeat_s=(heartbeat_s := 1.0))
    # On a busy machine a whole process may stand still for as long as the heartbeat may: then with a longer one.
    if report.get("alive") != []:
        with processes(1, 1) as others:
            report = stopped(others, tmp_path / "8", heartbeat_s=(heartbeat_s := 8.0))
            assert others[0].end() == 0
    assert report, "who holds Python's lock for long is waited for"
    assert (report["alive"], report["silent"]) == ([], [1])
    assert (report["left"], report["closed"]) == ([1], []), "who has left still sees it, until it closes"
    assert report["error"] == "UnavailableError"
    assert re.search(r"kungfu: peer rank=1 shows no life for \d+\.\d s in gradients", report["text"]), report
    assert 0.8 * heartbeat_s < report["after_s"] < 90.0  # of a deadline of 300
    assert left_behind(str(tmp_path)) == []


def stopped(two: Peers, folder: Path, *, heartbeat_s: float) -> dict[str, Any]:
    """The report of the first process on the second one, which is late at first and then stopped; or nothing."""
    for rank, peer in enumerate(two):
        peer.tell("stopped", peer=rank, folder=str(folder), heartbeat_s=heartbeat_s)
    was_waited_for = two[0].hear() == 2.0
    began = time.monotonic()
    os.kill(two[1].process.pid, signal.SIGSTOP)
    report = two[0].hear() if was_waited_for else {}
    return {**report, "after_s": report["noticed"] - began} if report else {}


def left_behind(folder: str) -> list[str]:
    addresses = [line for line in Path("/proc/net/unix").read_text().splitlines() if job(folder) in line]
    return addresses + [name for name in os.listdir("/dev/shm") if "kungfu" in name]


def job(folder: str) -> str:
    return f"test-{Path(folder).name[-24:]}-{Path(folder).parent.name[-24:]}"


def attached(**options: float) -> tuple[Any, Any]:
    """An attachment, and a step that adds tensors up by it."""
    import tensorflow as tf

    from kungfu.runtime.attachment.local import LocalAttachment

    attachment, order = LocalAttachment(**options), tf.Variable(0)

    @tf.function(autograph=False)
    def step(values: list[tf.Tensor]) -> list[tf.Tensor]:
        return attachment.all_reduce(values, prescale=1.0, order=order, tag="gradients")

    return attachment, step


def failure_of(step: Any) -> dict[str, str]:
    """The error of a step that adds up a one of each peer; empty where there is none."""
    import tensorflow as tf

    try:
        step([1.0])
    except tf.errors.OpError as error:
        return {"error": type(error).__name__, "text": error.message}
    return {}


def follow_views(peer: int, folder: str) -> None:
    """Takes part in each view that has this peer; writes the sums it saw, and prints the number of its traces."""
    import tensorflow as tf

    attachment, step = attached()
    for view, members in enumerate(VIEWS):
        if peer not in members:
            attachment.close()
            continue
        open_view(attachment, members.index(peer), size=len(members), folder=folder, view=view)
        sums = step([tf.constant(value) for value in draw(peer, view)])
        (Path(folder) / f"{view}-{peer}").write_bytes(b"".join(total.numpy().tobytes() for total in sums))
    attachment.close()
    answer(step.experimental_get_tracing_count())


def lose_a_peer(peer: int, folder: str) -> None:
    """Reduces once; then rank 2 waits for its end, and the others print with which errors they learnt of it."""
    attachment, step = attached()
    open_view(attachment, peer, size=3, folder=folder, view=0)
    step([1.0])
    answer("ready")
    if peer == 2:
        sys.stdin.read()
    first, noticed, second = failure_of(step), time.monotonic(), failure_of(step)
    attachment.close()
    answer({"failures": [first, second], "noticed": noticed})


def stand_still(peer: int, folder: str, heartbeat_s: float) -> None:
    """Rank 1 is late, but alive, by more than the heartbeat's limit; then it is stopped, and rank 0 says so."""
    import ctypes

    attachment, step = attached(heartbeat_s=heartbeat_s)
    open_view(attachment, peer, size=2, folder=folder, view=0)
    if peer == 1:
        # It holds Python's lock: no thread of Python runs meanwhile.
        ctypes.PyDLL(None).usleep(round(2.5e6 * heartbeat_s))
    total = float(step([1.0])[0])
    report: dict[str, Any] = {"alive": list(attachment.silent().ranks)}
    answer(total)
    if peer == 1:
        sys.stdin.read()
    while not attachment.silent().ranks:
        time.sleep(0.02)
    report |= {"silent": list(attachment.silent().ranks), "noticed": time.monotonic()}
    report |= failure_of(step)
    attachment.leave()
    report["left"] = list(attachment.silent().ranks)
    attachment.close()
    report["closed"] = list(attachment.silent().ranks)
    answer(report)


def take_a_norm() -> None:
    """Prints the squared norm of many numbers, to its last bit."""
    import tensorflow as tf

    from kungfu.runtime.attachment.norms import norm_squared

    answer(float(norm_squared([tf.constant(draw_many())])).hex())


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def open_view(attachment, rank: int, *, size: int, folder: str, view: int) -> None:
    me = Credentials(job(folder), view, rank, size, b"secret")
    attachment.open(me, deadline_s=DEADLINE_S, addresses=[""] * size)


PROGRAMS: dict[str, Callable[..., None]] = {
    "views": follow_views,
    "norm": take_a_norm,
    "killed": lose_a_peer,
    "stopped": stand_still,
}

if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        arguments = json.loads(line)
        PROGRAMS[arguments.pop("do")](**arguments)
