"""One peer of a real cluster, driven by a test: a command a line on standard input, a JSON answer a line on output."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from kungfu.runtime.attachment.horovod import HorovodAttachment, engine
from kungfu.runtime.attachment.norms import NormsWanted, norm_placeholder
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.signal.operation.numpy_kernels import norm_squared
from tests.runtime.attachment.peer_process import serve

if __name__ == "__main__":  # and not in a process that only collects tests
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as programs do that are to end with `| head`
ATTACHMENT = HorovodAttachment(host=sys.argv[1] if __name__ == "__main__" else "127.0.0.1")
ORDER = tf.Variable(0, dtype=tf.int64, trainable=False)
ME = tf.Variable(0, dtype=tf.int64, trainable=False)
OPEN_GATES = tf.Variable(True, trainable=False)
TRACES: list[str] = []


def reduce(values: list[Any], *, tag: str, prescale: Any = 1.0) -> list[Any]:
    return ATTACHMENT.all_reduce(values, prescale=prescale, order=ORDER, tag=tag)


def mixture(me: Any) -> list[Any]:
    """Every dtype, a scalar, an empty tensor, a dynamic shape, and at last the extra values."""
    x = tf.cast(me, tf.float32) + 1
    dynamic = tf.fill([tf.cast(me * 0 + 3, tf.int32)], x)
    return [
        tf.fill([2, 3], x),
        tf.cast(x, tf.float16),
        tf.zeros([0, 3], tf.float64),
        tf.cast(tf.stack([x, -x]), tf.int32),
        tf.cast(tf.stack([x, x]), tf.bfloat16),
        dynamic,
        tf.cast(tf.fill([2], x), tf.float64) / 3,
        tf.fill([2], tf.cast(me, tf.int64) + 2**40),
        tf.stack([x, x * 10]),
    ]


@tf.function(autograph=False)
def traced_mixture(prescale: Any) -> list[Any]:
    TRACES.append("mixture")
    return reduce(mixture(ME.read_value()), prescale=prescale, tag="mixture")


@tf.function(autograph=False)
def constants() -> list[Any]:
    """Nothing that goes in depends on a variable, and the two messages look alike."""
    TRACES.append("constants")
    return [*reduce([tf.constant([1.0, 2.0])], tag="constants"), *reduce([tf.constant([1.0, 2.0])], tag="constants")]


@tf.function(autograph=False)
def gated() -> list[Any]:
    """Messages in a flat part, two gates and an inner function; none of them uses another's result."""
    inner = tf.function(lambda: reduce([tf.constant(4.0)], tag="inner")[0], autograph=False)
    gate = OPEN_GATES.read_value()
    slow = tf.eye(300)  # the first message is ready last, so that only the order that we ask for can be what we see
    for _ in range(5):
        slow = tf.matmul(slow, tf.eye(300) + 0 * tf.cast(ORDER.read_value(), tf.float32))
    flat = reduce([slow[0, 0]], tag="flat")[0]
    one = tf.cond(gate, lambda: reduce([tf.constant(2.0)], tag="gate_one")[0], lambda: 0.0)
    two = tf.cond(gate, lambda: reduce([tf.constant(3.0)], tag="gate_two")[0], lambda: 0.0)
    return [flat, one, two, inner(), tf.cast(ORDER.read_value(), tf.float32)]


@tf.function(autograph=False)
def normal(seed: Any) -> Any:
    return reduce([tf.random.stateless_normal([100_003], seed)], tag="normal")[0]


@tf.function(autograph=False)
def with_norms(seed: Any, prescale: Any) -> Any:
    """Two tensors and what rides on them: the norm where it stands for itself, and beside it a number."""
    own = [tf.random.stateless_normal([40_001], seed), tf.random.stateless_normal([7, 3], seed)]
    values = [*own, tf.stack([tf.where(prescale > 0, norm_placeholder(), 0.0), 2.0])]
    wanted = NormsWanted(values=True, sums=True)
    results = ATTACHMENT.all_reduce_with_norms(values, wanted=wanted, prescale=prescale, order=ORDER, tag="norms")
    return own, *results


def plain(tensors: list[Any]) -> list[Any]:
    return [tf.cast(t, tf.float64).numpy().tolist() if t.dtype.is_floating else t.numpy().tolist() for t in tensors]


def do_open(*, rank: int, size: int, view: int, **arguments: Any) -> dict[str, Any]:
    ME.assign(rank)
    ATTACHMENT.open(Credentials("test", view, rank, size, b"secret"), **arguments)
    return {"left_behind": [name for name in os.environ if name.startswith("HOROVOD_")]}


def do_mixture(*, prescale: float) -> dict[str, Any]:
    return {**of_mixture(traced_mixture(tf.constant(prescale))), "traces": TRACES.count("mixture")}


def do_eager() -> dict[str, Any]:
    return of_mixture(reduce(mixture(ME), tag="eager"))


def of_mixture(sums: list[Any]) -> dict[str, Any]:
    return {"sums": plain(sums), "dtypes": [t.dtype.name for t in sums]}


def do_constants() -> dict[str, Any]:
    return {"sums": plain(constants()), "traces": TRACES.count("constants")}


def do_gated() -> dict[str, Any]:
    """The values, and the names of the messages in the order in which TensorFlow began them."""
    ORDER.assign(0)
    values = plain(gated())
    with TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options=tf.profiler.experimental.ProfilerOptions(host_tracer_level=3))
        gated()
        tf.profiler.experimental.stop()
        return {"values": values, "begun": [name for _, name in sorted(begun(Path(folder)))]}


def begun(folder: Path) -> Iterator[tuple[int, str]]:
    """When a message began, in picoseconds, and its name."""
    (file,) = folder.rglob("*.xplane.pb")
    for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                # Each TensorFlow tells the beginning of a kernel that does not block like this, whatever else it tells.
                if plane.event_metadata[event.metadata_id].name == "ExecutorState::ProcessAsync::Start":
                    of = {
                        plane.stat_metadata[one.metadata_id].name: plane.stat_metadata[one.ref_value].name
                        for one in event.stats
                        if one.ref_value
                    }
                    if of["kernel_type"] == "HorovodAllreduce":
                        yield line.timestamp_ns * 1000 + event.offset_ps, of["name"].rpartition("/")[2]


def do_normal() -> dict[str, Any]:
    total = normal(tf.stack([ME, ME]))
    return {"digest": hashlib.sha256(total.numpy().tobytes()).hexdigest(), "finite": bool(tf.math.is_finite(total[0]))}


def do_norms() -> dict[str, Any]:
    """The norms of a step in which the last peer has no samples, beside what they are the norms of."""
    share = 0.0 if int(ME) == int(ATTACHMENT._engine_state.size) - 1 else 1.0
    own, sums, norm, norm_of_sums = with_norms(tf.stack([ME, ME]), tf.constant(share, tf.float64))
    squares = [float(norm_squared([tensor.numpy() for tensor in tensors])) for tensors in (own, sums[:-1])]
    told = [float(tf.cast(one, tf.float32)) for one in (norm, norm_of_sums)]
    return {"oracle": squares, "norms": told, "rider": sums[-1].numpy().tolist()}


def do_mismatch() -> dict[str, Any]:
    reduce([tf.ones([2 + int(ME)])], tag="mismatch")
    return {}


def do_break_pipe() -> dict[str, Any]:
    """What a write to a connection does that the other side has closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", buffering=0) as pipe:
        try:
            pipe.write(b"x")
        except BrokenPipeError as error:
            return {"error": type(error).__name__}
    return {}


def do_stream(*, abort_after_s: float | None) -> dict[str, Any]:
    """Sends messages without a pause until the engine of this peer, or that of another peer, is aborted."""
    aborting = threading.Timer(abort_after_s or 0.0, engine.abort if abort_after_s else lambda: None)
    aborting.start()
    try:
        while True:
            normal(tf.stack([ME, ME]))
    finally:
        aborting.join()


def do_reason() -> dict[str, Any]:
    error = tf.errors.UnknownError(None, None, "Horovod has been shut down")
    failure = ATTACHMENT.failure_of(error)
    return {"reason": str(failure), "ranks": getattr(failure, "waiting_for", None)}


def act(*, do: str, **arguments: Any) -> dict[str, Any]:
    started = time.monotonic()
    try:
        # An action of this file, or a method of the attachment.
        action = globals().get(f"do_{do}")
        answer = action(**arguments) if action else {"given": getattr(ATTACHMENT, do)(**arguments)}
    except Exception as error:  # noqa: BLE001 - the test looks at whatever it was
        answer = {"error": type(error).__name__, "text": str(error)}
    return {**answer, "seconds": time.monotonic() - started}


if __name__ == "__main__":
    serve(act)
