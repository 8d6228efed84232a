"""The cost of policies per step: noise scale, throughput and stragglers together, compared with no policy.

One job of two peers holds four compiled steps on the same model of about a million weights: *bare* (no policy, no
record), *watched* (the policies, no record), *unfused* (like watched, with the policies' arithmetic op by op instead of
in the two ops of `kungfu.compiler.lower`) and *recorded* (the policies, and every step in ``trace.jsonl``, a run's
default). They run in alternating blocks of five steps. The mean step of a block is divided by that of the neighbouring
block of another kind, so that other work of the machine affects all alike; the figure is the median of these ratios,
with their quartiles. On a busy machine processor time is more meaningful than the clock: both are printed. A second
job compares *watched* with *bare* on ten million weights.

The noise scale needs two squared norms of the gradients in each step that measures it, every ``--every``-th.

Prints a table, and as its last line a JSON object: ``overhead`` is watched over bare, ``unfused`` unfused over bare,
``recording`` recorded over watched, ``together`` recorded over bare, each minus 1, by the clock; ``processor`` has the
same by processor time, and ``quartiles`` the quartiles of each; ``messages_per_step`` is the number of the policies'
messages besides the gradients; ``ten_million`` has the figures of the second job.

Run: ``python -m benchmarks.policy_overhead [--rounds 150] [--samples 576] [--every 1] [--large-rounds 40]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kungfu.runtime.core.barrier import BarrierResult, Decision
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.peer.agent_client import RecordEntry
from kungfu.runtime.peer.membership_protocol import StandaloneMembership
from kungfu.runtime.settings import read_settings
from kungfu.runtime.state.replicated_state import ReplicatedState

if TYPE_CHECKING:
    from kungfu.runtime.attachment.protocol import Attachment
    from kungfu.training.loop.training import Training

BLOCK, FEATURES = 5, 512
DEADLINE_S = 600.0
# The widths of the hidden layers by millions of weights.
WIDTHS = {1: (896, 512, 256), 10: (2560, 2592, 800)}
# Each figure, and the two kinds of steps that it compares, which are neighbours in KINDS.
FIGURES = {
    "overhead": ("watched", "bare"),
    "unfused": ("unfused", "bare"),
    "recording": ("recorded", "watched"),
    "together": ("recorded", "bare"),
}
KINDS = ("unfused", "bare", "watched", "recorded")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; ``--peer`` is for the benchmark's own peers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=150, help="blocks of 5 steps of each kind (150)")
    parser.add_argument("--samples", type=int, default=576, help="of a step on each peer (576, about 20 ms)")
    parser.add_argument("--every", type=int, default=1, help="steps between two measurements of the noise scale (1)")
    parser.add_argument("--large-rounds", type=int, default=40, help="blocks with ten million weights, 0 for none (40)")
    parser.add_argument("--millions", type=int, choices=WIDTHS, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


# ---- a peer ----------------------------------------------------------------------------------------------------------


def policies(*, every: int) -> list[Any]:
    """The three policies, with rules that never fire, as an ordinary step has no barrier."""
    import kungfu as kf
    from kungfu.policies import gns_batch

    @kf.policy
    def watching(training: Any) -> Any:
        speed, slow = kf.monitor.throughput(training), kf.monitor.stragglers(training)
        return kf.control.every(50).when((speed < 0) & kf.ops.any(slow)).set_global_batch_size(speed)

    return [gns_batch(max_peers=2, sample_every=every), watching()]


def build(*, millions: int = 1) -> tuple[Any, Any]:
    """A network of about N million weights, and its optimizer."""
    import keras

    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation="relu") for width in WIDTHS[millions]]
    return keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(10)]), keras.optimizers.SGD(0.01)


def marked(training: Any, model: Any, optimizer: Any) -> Callable[..., Any]:
    """The training step, marked as the step of a run."""
    import keras
    import tensorflow as tf

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @training.step
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step


class Beside(StandaloneMembership):
    """The membership of a second run in the same process, always in the view of the first run."""

    def __init__(self, first: Training, attachment: Attachment, *, name: str) -> None:
        super().__init__()
        self._first, self._attachment, self._name = first, attachment, name

    def join(self, state: ReplicatedState, **_: Any) -> BarrierResult:
        settings, size, rank = read_settings(), self._first.size, self._first.rank
        assert settings is not None
        assert rank is not None
        me = Credentials(f"{settings.job}-{self._name}", 1, rank, size, bytes.fromhex(settings.secret))
        self._attachment.open(me, deadline_s=60.0, addresses=[""] * size)
        self.view = self._first._run.membership.view
        view = View(1, tuple(Peer(number, "") for number in range(size)))
        return BarrierResult(None, Decision(view, Terms()), rank, sources=(0,))

    def record(self, stream: str, entry: RecordEntry) -> None:
        self._first._run.membership.record(stream, entry)


def beside(first: Training, given: Sequence[Any], *, name: str) -> Training:
    """Another run without a record, for the same model in the same job; the name "unfused" disables fused ops."""
    import tensorflow as tf

    from kungfu.compiler import compile_policies
    from kungfu.compiler.lower import fused, lower
    from kungfu.runtime.attachment.choose import make_attachment
    from kungfu.training.graph.graph_state import GraphState
    from kungfu.training.graph.layer_memory import LayerMemory
    from kungfu.training.graph.tracing.effects import EffectGate
    from kungfu.training.graph.tracing.trace import StepTrace
    from kungfu.training.loop.step_calls import StepCalls
    from kungfu.training.loop.training import Training
    from kungfu.training.run import Declared, Pending, Standing
    from kungfu.training.telemetry.event_log_writer import EventLogWriter
    from kungfu.training.telemetry.step_timer import StepTimer

    plan, attachment = compile_policies(given), make_attachment("local")
    with tf.device("/CPU:0"):
        program = lower(plan) if name == "unfused" else fused(lower(plan))
        graph_state = GraphState.of(plan)
    membership = Beside(first, attachment, name=name)
    run = replace(
        first._run,
        graph_state=graph_state,
        program=program,
        memory=LayerMemory(),
        trace=StepTrace(EffectGate(lambda: graph_state.view.version.read_value() > 0)),
        attachment=attachment,
        membership=membership,
        settings=replace(first._run.settings, compare_every=0, exits=None),
        journal=EventLogWriter(membership.record),
        recorder=None,
        timer=StepTimer(),
        declared=Declared(),
        standing=Standing(),
        pending=Pending(),
    )
    return Training(StepCalls(run))


def timed(act: Callable[[], object]) -> float:
    """The seconds of one call of ``act``."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def measure(given: argparse.Namespace) -> None:
    """Runs one peer; rank 0 records the seconds of a step in each block."""
    import numpy as np
    import tensorflow as tf

    import kungfu as kf

    model, optimizer = build(millions=given.millions)
    watching = partial(policies, every=given.every)
    recorded = kf.attach(model, optimizer, policies=watching())
    rng = np.random.default_rng(recorded.peer)
    x = tf.constant(rng.normal(size=(given.samples, FEATURES)).astype(np.float32))
    y = tf.constant(rng.integers(0, 10, given.samples))
    steps = {"recorded": marked(recorded, model, optimizer)}
    steps["recorded"](x, y)
    for name, chosen in (("watched", watching()), ("unfused", watching()), ("bare", [])):
        steps[name] = marked(beside(recorded, chosen, name=name), model, optimizer)
    kinds = KINDS if given.millions == 1 else ("bare", "watched")
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    processor: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(given.rounds + 1):
        for name in kinds[:: -1 if number % 2 else 1]:
            began = time.process_time()
            seconds[name].append(statistics.fmean(timed(partial(steps[name], x, y)) for _ in range(BLOCK)))
            processor[name].append((time.process_time() - began) / BLOCK)
    if recorded.rank == 0:
        messages = recorded._run.plan.messages_per_step
        weights = int(sum(np.prod(one.shape) for one in model.trainable_variables))
        told = {"seconds": seconds, "processor": processor, "messages_per_step": messages, "weights": weights}
        given.peer.write_text(json.dumps(told))
    recorded.finish()


# ---- the launcher ----------------------------------------------------------------------------------------------------


def ratio(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile of ``over / under - 1`` over the blocks."""
    return statistics.quantiles((one / other - 1 for one, other in zip(over, under, strict=True)), n=4)


def main() -> None:
    """Starts the jobs, and prints the measurements."""
    given = arguments()
    if given.peer is not None:
        measure(given)
        return
    module, shared = "benchmarks.policy_overhead", {"samples": given.samples, "every": given.every}
    figures = told(measured_by_peers(module, {"rounds": given.rounds, **shared}, deadline_s=DEADLINE_S))
    if given.large_rounds:
        large = {"rounds": given.large_rounds, "millions": 10, **shared}
        figures["ten_million"] = told(measured_by_peers(module, large, deadline_s=DEADLINE_S))
    print(json.dumps(figures))


def measured_by_peers(
    module: str,
    given: Mapping[str, Any],
    *,
    deadline_s: float,
    options: Sequence[str] = (),
    watching: Callable[[Path], AbstractContextManager[object]] = nullcontext,
) -> Any:
    """Runs a job of two peers with ``module``, ``--peer`` and these arguments; returns rank 0's measurements.

    Args:
        module: The module of the benchmark.
        given: The options of the benchmark.
        deadline_s: The deadline of the job, in seconds.
        options: Further options of kungfu-run.
        watching: A context entered during the job, given the file with kungfu-run's output.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "seconds.json"
        program = ["-m", module, "--peer", str(result)]
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        launcher = [sys.executable, "-m", "kungfu.cli.run", "-np", "2", "--logdir", str(Path(folder) / "log"), *options]
        console = Path(folder) / "console.txt"
        with console.open("wb") as output, watching(console):
            job = subprocess.Popen(
                [*launcher, sys.executable, *program, *words], env={**os.environ, **ONE_THREAD}, stdout=output
            )
            try:
                code = job.wait(timeout=deadline_s)
            finally:
                if job.poll() is None:
                    job.terminate()
                    job.wait()
        if code:
            raise SystemExit(f"the job ended with exit code {code}")
        return json.loads(result.read_text())


def told(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Prints the table, and returns the figures in it."""
    seconds, processor = (
        {name: blocks[1:] for name, blocks in measured[clock].items()} for clock in ("seconds", "processor")
    )
    print(f"{measured['weights']:,} weights, 2 peers, {len(seconds['bare'])} blocks of {BLOCK} steps of each kind")
    for name in seconds:
        wall, busy = (1e3 * statistics.median(clock[name]) for clock in (seconds, processor))
        print(f"{name:>9}: {wall:7.2f} ms a step, {busy:7.2f} ms of processor time on rank 0")
    by_clock: dict[str, Any] = {"quartiles": {}}
    by_processor: dict[str, Any] = {"quartiles": {}}
    for name, (over, under) in FIGURES.items():
        if over not in seconds or under not in seconds:
            continue
        words = []
        for figures, clock, unit in ((by_clock, seconds, "of time"), (by_processor, processor, "of processor time")):
            lower, median, upper = ratio(clock[over], clock[under])
            figures[name], figures["quartiles"][name] = round(median, 5), [round(lower, 5), round(upper, 5)]
            words.append(f"{100 * median:+.2f} % (quartiles {100 * lower:+.2f}, {100 * upper:+.2f}) {unit}")
        print(f"{name:>9}: {over} over {under}: {', '.join(words)}")
    step_ms, processor_ms = (round(1e3 * statistics.median(clock["bare"]), 3) for clock in (seconds, processor))
    return {
        **by_clock,
        "processor": by_processor,
        "messages_per_step": measured["messages_per_step"],
        "weights": measured["weights"],
        "blocks": len(seconds["bare"]),
        "step_ms": step_ms,
        "step_processor_ms": processor_ms,
    }


if __name__ == "__main__":
    main()
