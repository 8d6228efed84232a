"""The time of an all-reduce of the local attachment between real processes, compared with plain copies.

Prints a line for each number of peers and length: the median over rounds of a traced call on rank 0, and the median of
two plain copies of as many bytes by all peers at once, since each peer must write its values and read sums.

Run: ``python -m benchmarks.all_reduce``
"""

from __future__ import annotations

import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

FLOATS = (10, 1_000, 100_000, 1_000_000, 10_000_000)
ROUNDS = 50
DEADLINE_S = 120.0


def median_s(act: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        act()
        times.append(time.perf_counter() - started)
    return statistics.median(times[ROUNDS // 10 :])


def measure(rank: int, *, size: int, job: str) -> None:
    """Runs one peer; rank 0 prints the times."""
    import tensorflow as tf

    from kungfu.runtime.attachment.local import LocalAttachment
    from kungfu.runtime.ipc.handshake import Credentials

    attachment, order = LocalAttachment(), tf.Variable(0)
    me = Credentials(job, 0, rank, size, b"benchmark")
    attachment.open(me, deadline_s=DEADLINE_S, addresses=[""] * size)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def reduce(value: tf.Tensor) -> tf.Tensor:
        return attachment.all_reduce([value + 1.0], prescale=1.0, order=order, tag="benchmark")[0]

    for floats in FLOATS:
        source, target, value = np.ones(floats, np.float32), np.ones(floats, np.float32), tf.ones([floats])
        add_s = median_s(partial(operator.add, value, 1.0))
        reduce(value)
        reduce_s = median_s(partial(reduce, value)) - add_s
        reduce(value)  # all peers copy at the same time
        copy_s = 2 * median_s(partial(np.copyto, target, source))
        if rank == 0:
            ratio = reduce_s / copy_s
            print(f"{size:5} {4 * floats:>10} {1e6 * reduce_s:>12.0f} {1e6 * copy_s:>12.0f} {ratio:>6.1f}", flush=True)
    attachment.close()


def main() -> None:
    print(f"{'peers':>5} {'bytes':>10} {'reduce, us':>12} {'copies, us':>12} {'ratio':>6}")
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}
    for size in (2, 4):
        job = f"benchmark-{os.getpid()}-{size}"
        command = [sys.executable, "-m", "benchmarks.all_reduce"]
        peers = [
            subprocess.Popen([*command, str(rank), str(size), job], env=os.environ | threads, stderr=subprocess.DEVNULL)
            for rank in range(size)
        ]
        try:
            codes = [peer.wait(timeout=2 * DEADLINE_S) for peer in peers]
        finally:
            for peer in peers:
                peer.kill()
        if any(codes):
            raise SystemExit(f"the benchmark's peers ended with {codes}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), size=int(sys.argv[2]), job=sys.argv[3])
    else:
        main()
