"""The cost of Keras' ``fit`` in a job, compared with a custom loop, plain Keras, and Horovod's ops in a loop.

A network of 945,226 weights is trained in seven ways, by seven jobs that take turns:

- *plain_fit*, *plain_loop*: one process without kungfu, ``fit`` and a loop over a compiled step;
- *fit*, *loop*: two peers, ``fit`` with the line ``kf.keras.attach(model)``, and the loop of the README;
- *fit_10*: *fit* of a model compiled with ``steps_per_execution=10``;
- *horovod*, *horovod_quick*: two processes, *plain_loop* with Horovod's grouped all-reduce, at its defaults and with
  ``HOROVOD_CYCLE_TIME=0.1``. Horovod's engine uses the processor even when idle, so these processes are stopped
  outside of their turns.

A turn is an epoch of `--steps` steps with 32 samples per process, from its first batch to its last logs. Each process
has one thread. The order of the turns is reversed from round to round, with the compared ways next to each other; a
figure is the median over the rounds of the ratio of samples per second in a round, with its quartiles. On a busy
machine processor time is more meaningful than the clock: ``processor`` has the same figures by processor time, of the
process with the most.

Prints a table, and as its last line a JSON object: ``fit_cost``, (fit / loop) / (plain_fit / plain_loop), the cost that
the job adds to Keras' ``fit``; ``fit_over_loop``, fit_10 / loop; ``fit_over_horovod``, fit_10 / the better of Horovod's
two ways, by their medians. A figure is null if one of its jobs was left out, or refused to train.

Run: ``python -m benchmarks.keras [--rounds 20] [--steps 200] [--ways fit loop ...]``
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.policy_overhead import ONE_THREAD

WIDTHS = (256, 768, 960, 10)
SAMPLES, EXECUTION = 32, 10  # of a process in a step; steps of an execution
DEADLINE_S = 300.0
BOUNDS = {"fit_cost": 0.95, "fit_over_loop": 0.95, "fit_over_horovod": 1.3}


# ---- the seven ways -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way to train the network: its launcher's words before ``python``, and its number of processes."""

    launcher: tuple[str, ...] = ()
    processes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    is_stopped: bool = False


_PEERS = Way((sys.executable, "-m", "kungfu.cli.run", "-np", "2"), 2)
# Between two turns a process is stopped, possibly in a message, for longer than Gloo's 30 s.
_STOPPED = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
_HOROVOD = (str(Path(sys.executable).parent / "horovodrun"), "--gloo", "--network-interface", "lo", "-np", "2")
WAYS = {
    "plain_fit": Way(),
    "plain_loop": Way(),
    "fit": _PEERS,
    "loop": _PEERS,
    "fit_10": _PEERS,
    "horovod": Way(_HOROVOD, 2, _STOPPED, is_stopped=True),
    "horovod_quick": Way(_HOROVOD, 2, {**_STOPPED, "HOROVOD_CYCLE_TIME": "0.1"}, is_stopped=True),
}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; ``--way`` and ``--turns`` are for the benchmark's own processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each way, after one that does not count (20)")
    parser.add_argument("--steps", type=int, default=200, help="of a turn (200)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="those that are run (all)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.rounds < 2:
        parser.error(f"--rounds {given.rounds}: quartiles need 2 at least")
    if given.steps < 1 or given.steps % EXECUTION:
        parser.error(f"--steps {given.steps}: takes a multiple of {EXECUTION}")
    return given


# ---- a process -------------------------------------------------------------------------------------------------------


class Turns:
    """The connection of a process to the launcher, which commands its turns."""

    def __init__(self, address: str, *, way: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._lines = self._socket.makefile("rw")
        self._began = (0.0, 0.0)
        self._tell({"way": way, "pid": os.getpid()})

    def begin(self) -> None:
        """Waits for this process's turn, and starts its clocks."""
        if not self._lines.readline():
            sys.exit("the benchmark has ended")
        self._began = (time.perf_counter(), time.process_time())

    def end(self) -> None:
        """Reports the time of the turn."""
        seconds, processor = self._began
        self._tell({"seconds": time.perf_counter() - seconds, "processor": time.process_time() - processor})

    def refused(self, error: Exception) -> None:
        """Reports that this way cannot train."""
        self._tell({"refused": str(error)})

    def _tell(self, message: dict[str, Any]) -> None:
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()


def build() -> Any:
    """The network."""
    import keras

    keras.utils.set_random_seed(0)
    first, *hidden, last = WIDTHS
    layers = [keras.layers.Dense(width, activation="relu") for width in hidden]
    return keras.Sequential([keras.Input((first,)), *layers, keras.layers.Dense(last)], name="dense")


def optimizer_and_loss() -> tuple[Any, Any]:
    """The optimizer and the loss of all ways."""
    import keras

    return keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data(*, steps: int, processes: int) -> tuple[Any, Any]:
    """The samples of an epoch of ``steps`` steps."""
    import numpy as np

    rng, count = np.random.default_rng(0), SAMPLES * steps * processes
    return rng.normal(size=(count, WIDTHS[0])).astype(np.float32), rng.integers(0, WIDTHS[-1], count)


def run_fit(given: argparse.Namespace, turns: Turns) -> None:
    """Trains by plain_fit, fit or fit_10; each epoch is a turn."""
    import keras

    import kungfu as kf
    from kungfu.errors import UsageError

    processes = WAYS[given.way].processes
    model, (optimizer, loss) = build(), optimizer_and_loss()
    execution = EXECUTION if given.way == "fit_10" else 1
    model.compile(optimizer=optimizer, loss=loss, steps_per_execution=execution)
    if given.way != "plain_fit":
        kf.keras.attach(model)
    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: turns.begin(), on_epoch_end=lambda epoch, logs: turns.end()
    )
    try:
        model.fit(
            *data(steps=given.steps, processes=processes), batch_size=SAMPLES * processes, epochs=given.rounds + 1,
            callbacks=[callback], verbose=0,
        )  # fmt: skip
    except UsageError as error:
        turns.refused(error)


def run_loop(given: argparse.Namespace, turns: Turns) -> None:
    """Trains by loop, the program of the README."""
    import tensorflow as tf

    import kungfu as kf

    model, (optimizer, loss_of) = build(), optimizer_and_loss()
    training = kf.attach(model, optimizer)

    @training.step
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        means = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))

    batches = training.batches(
        data(steps=given.steps, processes=2), batch_size=2 * SAMPLES, epochs=given.rounds + 1, seed=0
    )
    step(*next(batches))  # only joins
    for _ in range(given.rounds + 1):
        turns.begin()
        for _ in range(given.steps):
            step(*next(batches))
        turns.end()
    training.finish()


def run_plain_loop(given: argparse.Namespace, turns: Turns) -> None:
    """Trains by plain_loop, or with Horovod's all-reduce by its two ways."""
    import numpy as np
    import tensorflow as tf

    processes, rank = WAYS[given.way].processes, 0
    average: Callable[[Any], Any] = list
    if processes > 1:
        import horovod.tensorflow as hvd

        hvd.init()
        rank, average = hvd.rank(), hvd.grouped_allreduce
    model, (optimizer, loss_of) = build(), optimizer_and_loss()

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        means = average(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))

    x, y = data(steps=given.steps, processes=processes)
    for epoch in range(given.rounds + 1):
        turns.begin()
        order = np.random.default_rng(epoch).permutation(len(x))
        for rows in order.reshape(given.steps, processes, SAMPLES)[:, rank]:
            step(x[rows], y[rows])
        turns.end()


PROGRAMS = {
    "plain_fit": run_fit, "fit": run_fit, "fit_10": run_fit, "loop": run_loop,
    "plain_loop": run_plain_loop, "horovod": run_plain_loop, "horovod_quick": run_plain_loop,
}  # fmt: skip


# ---- the launcher ----------------------------------------------------------------------------------------------------


@dataclass
class Process:
    """The launcher's connection to a training process."""

    pid: int
    lines: IO[str]

    def tell(self) -> dict[str, Any] | None:
        """The next report of the process; None if the process has ended."""
        line = self.lines.readline()
        return json.loads(line) if line else None


@dataclass
class Job:
    """A way and its started processes."""

    name: str
    launched: subprocess.Popen[bytes]
    log: Path
    processes: list[Process] = field(default_factory=list)
    refused: str = ""

    def turn(self) -> tuple[float, float] | None:
        """Runs one turn: the seconds, by clock and processor, of the slowest process; None if refused."""
        self._signal(signal.SIGCONT)
        for one in self.processes:
            one.lines.write("go\n")
            one.lines.flush()
        told = [message for one in self.processes if (message := one.tell()) is not None]
        self._signal(signal.SIGSTOP)
        if len(told) < len(self.processes):
            raise SystemExit(f"a process of {self.name} has ended:\n{self.log.read_text()[-3000:]}")
        self.refused = "; ".join({one["refused"] for one in told if "refused" in one})
        if self.refused:
            return None
        return max(one["seconds"] for one in told), max(one["processor"] for one in told)

    def _signal(self, number: int) -> None:
        if WAYS[self.name].is_stopped:
            for one in self.processes:
                os.kill(one.pid, number)

    def end(self) -> None:
        """Ends the remaining processes."""
        left = psutil.Process(self.launched.pid).children(recursive=True) if self.launched.poll() is None else []
        for one in left:
            one.kill()
        self.launched.kill()
        self.launched.wait()


@contextmanager
def started(name: str, given: argparse.Namespace, *, folder: Path, address: str) -> Iterator[Job]:
    """Starts the job of a way, and ends it after the block."""
    way = WAYS[name]
    program = [sys.executable, "-m", "benchmarks.keras", "--way", name, "--turns", address]
    options = ["--rounds", str(given.rounds), "--steps", str(given.steps)]
    logdir = ["--logdir", str(folder / name)] if way is _PEERS else []
    environment = {**os.environ, **ONE_THREAD, **way.environment}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        job = Job(
            name,
            subprocess.Popen(
                [*way.launcher, *logdir, *program, *options], env=environment, stdout=output, stderr=subprocess.STDOUT
            ),
            log,
        )
    try:
        yield job
    finally:
        job.end()


def admit(server: socket.socket, jobs: Mapping[str, Job]) -> None:
    """Returns once all processes have started."""
    deadline = time.monotonic() + DEADLINE_S
    missing = sum(WAYS[name].processes for name in jobs)
    server.settimeout(0.5)
    while missing:
        for job in jobs.values():
            if job.launched.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{job.name} has not come:\n{job.log.read_text()[-3000:]}")
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        connection.settimeout(DEADLINE_S)
        lines = connection.makefile("rw")
        hello = json.loads(lines.readline())
        job = jobs[hello["way"]]
        job.processes.append(Process(hello["pid"], lines))
        missing -= 1


Blocks = dict[str, list[tuple[float, float]]]


def measure(given: argparse.Namespace) -> tuple[Blocks, dict[str, str]]:
    """The seconds of each turn by way, by clock and processor; and the refused ways, with the reasons."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack, socket.socket(socket.AF_UNIX) as server:
        folder = Path(place)
        address = str(folder / "turns")
        server.bind(address)
        server.listen()
        jobs: dict[str, Job] = {}
        for name in given.ways:
            jobs[name] = stack.enter_context(started(name, given, folder=folder, address=address))
        admit(server, jobs)
        blocks: Blocks = {name: [] for name in WAYS if name in jobs}
        for number in range(given.rounds + 1):
            for name in [*blocks][:: -1 if number % 2 else 1]:
                took = jobs[name].turn()
                if took is None:
                    del blocks[name]
                elif number:  # the first turn traces
                    blocks[name].append(took)
        return blocks, {name: job.refused for name, job in jobs.items() if job.refused}


# ---- results ---------------------------------------------------------------------------------------------------------


def rates(blocks: Blocks, *, steps: int, clock: int) -> dict[str, list[float]]:
    """Samples per second of each turn, by way; ``clock`` is 0 for wall-clock and 1 for processor seconds."""
    return {
        name: [WAYS[name].processes * SAMPLES * steps / took[clock] for took in turns] for name, turns in blocks.items()
    }


def figures(by_way: Mapping[str, Sequence[float]]) -> dict[str, list[float] | None]:
    """The lower quartile, the median and the upper quartile of each figure over the rounds."""
    better = max(("horovod", "horovod_quick"), key=lambda name: statistics.median(by_way.get(name, [0.0])))
    of: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "fit_cost": (("fit", "plain_loop"), ("loop", "plain_fit")),
        "fit_over_loop": (("fit_10",), ("loop",)),
        "fit_over_horovod": (("fit_10",), (better,)),
    }
    return {name: _quartiles(by_way, above=above, below=below) for name, (above, below) in of.items()}


def _quartiles(
    by_way: Mapping[str, Sequence[float]], *, above: Sequence[str], below: Sequence[str]
) -> list[float] | None:
    if any(name not in by_way for name in (*above, *below)):
        return None
    ratios = [1.0] * len(by_way[above[0]])
    for name in above:
        ratios = [one * rate for one, rate in zip(ratios, by_way[name], strict=True)]
    for name in below:
        ratios = [one / rate for one, rate in zip(ratios, by_way[name], strict=True)]
    return [round(one, 4) for one in statistics.quantiles(ratios, n=4)]


def show(blocks: Blocks, refused: Mapping[str, str], *, steps: int) -> dict[str, Any]:
    """Prints the table, and returns the contents of the JSON object."""
    wall, processor = (rates(blocks, steps=steps, clock=clock) for clock in (0, 1))
    for name, turns in blocks.items():
        lower, median, upper = statistics.quantiles(wall[name], n=4)
        busy_ms = 1e3 * statistics.median(took[1] for took in turns) / steps
        step_ms = 1e3 * statistics.median(took[0] for took in turns) / steps
        print(
            f"{name:>14}: {median:8.0f} samples / s (quartiles {lower:.0f}, {upper:.0f}), {step_ms:6.2f} ms a step, "
            f"{busy_ms:6.2f} ms of processor time"
        )
    for name, why in refused.items():
        print(f"{name:>14}: refused: {why}")
    by_clock, by_processor = figures(wall), figures(processor)
    for name, found in by_clock.items():
        print(f"{name:>16}: {_told(found)} of time, {_told(by_processor[name])} of processor time; >= {BOUNDS[name]}")
    return {
        **{name: found and found[1] for name, found in by_clock.items()},
        "quartiles": {name: found and [found[0], found[2]] for name, found in by_clock.items()},
        "processor": {name: found and found[1] for name, found in by_processor.items()},
        "samples_per_second": {name: round(statistics.median(one), 1) for name, one in wall.items()},
        "refused": dict(refused),
    }


def _told(found: Sequence[float] | None) -> str:
    return "not measured" if found is None else f"{found[1]:.3f} (quartiles {found[0]:.3f}, {found[2]:.3f})"


def main() -> None:
    """Starts the jobs, and prints the measurements."""
    given = arguments()
    if given.way is not None:
        PROGRAMS[given.way](given, Turns(given.turns, way=given.way))
        return
    before = os.getloadavg()[0]
    print(f"the network {WIDTHS}, {SAMPLES} samples per process and step, {given.rounds} turns of {given.steps} steps")
    told = show(*measure(given), steps=given.steps)
    print(json.dumps(told | {"load": [round(one, 2) for one in (before, os.getloadavg()[0])]}))


if __name__ == "__main__":
    main()
