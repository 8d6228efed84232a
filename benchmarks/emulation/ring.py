"""Horovod's all-reduce among peers on hosts of an emulated network, in a given order of the hosts.

``python -m benchmarks.emulation.ring RANK HOST,HOST,... MEGABYTES ROUNDS`` is one peer.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.elasticity.jobs import ONE_THREAD_EACH, ROOT
from benchmarks.emulation.network import Network

__all__ = ["bound_s", "message_s"]

DEADLINE_S = 120.0


def message_s(whole: Network, placed: Sequence[int], *, megabytes: float, rounds: int) -> float:
    """The median seconds of a message of float32; the peer of rank ``r`` runs on host ``placed[r]``."""
    names = ",".join(whole.hosts[host].name for host in placed)
    environment = [f"{name}={value}" for name, value in ONE_THREAD_EACH.items()]
    peers = list[subprocess.Popen[str]]()
    with tempfile.TemporaryFile("w+") as errors, ExitStack() as ending:
        for rank, host in enumerate(placed):
            peer = [sys.executable, "-m", "benchmarks.emulation.ring", rank, names, megabytes, rounds]
            words = whole.hosts[host].command([*environment, *peer], folder=ROOT)
            pipe = subprocess.PIPE
            peers.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errors, text=True))
            ending.callback(peers[-1].wait)
            ending.callback(peers[-1].kill)  # the first of the two
        if store := _line_of(peers[0]):
            for one in peers[1:]:
                assert one.stdin is not None
                one.stdin.write(store)
                one.stdin.close()
        if not store or not (said := _line_of(peers[0])) or any(one.wait(timeout=DEADLINE_S) for one in peers):
            errors.seek(0)
            raise SystemExit(f"a peer of the all-reduce failed; their last words:\n{errors.read()[-4000:]}")
        return float(said)


def _line_of(peer: subprocess.Popen[str]) -> str:
    """The next line that a peer prints; empty if the peer has ended."""
    assert peer.stdout is not None
    return peer.stdout.readline()


def bound_s(size: int, *, crossings: int, megabytes: float, mbit: float) -> float:
    """The least seconds of a message if ``crossings`` peers of a host send to another host over its link.

    In a ring each of P peers sends 2 (P - 1) / P of the message.

    >>> bound_s(4, crossings=1, megabytes=8, mbit=100)
    0.96
    """
    return crossings * 2 * (size - 1) / size * megabytes * 8 / mbit


def main() -> None:
    """Runs one peer; rank 0 prints the address of its store, and the median seconds of a message."""
    import tensorflow as tf

    from kungfu.runtime.attachment.horovod import HorovodAttachment
    from kungfu.runtime.ipc.handshake import Credentials

    rank, names, megabytes, rounds = int(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3]), int(sys.argv[4])
    attachment, order = HorovodAttachment(host=names[rank]), tf.Variable(0)
    store = attachment.prepare(len(names)) if rank == 0 else sys.stdin.readline().strip()
    if rank == 0:
        print(store, flush=True)
    addresses = [f"{name}:{4000 + one}" for one, name in enumerate(names)]
    me = Credentials("ring", 1, rank, len(names), b"benchmark")
    attachment.open(me, deadline_s=DEADLINE_S, addresses=addresses, rendezvous=store)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def reduce(value: tf.Tensor) -> tf.Tensor:
        return attachment.all_reduce([value], prescale=1.0, order=order, tag="benchmark")[0]

    value, seconds = tf.ones([round(megabytes * 1e6 / 4)]), []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        total = reduce(value).numpy()
        seconds.append(time.perf_counter() - started)
        if not (total == len(names)).all():
            raise SystemExit(f"rank {rank} got a wrong sum")
    attachment.close()
    if rank == 0:
        print(statistics.median(seconds[1:]), flush=True)  # the first message is traced


if __name__ == "__main__":
    main()
