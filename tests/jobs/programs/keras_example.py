"""A script of examples/keras with another policy: as a peer of a job whose steps are recorded, or as plain Keras.

    keras_example.py --folder FOLDER --script SCRIPT [--words JSON] [--plain 1] [--schedule JSON] [--wait JSON] ...

In a job each peer leaves in FOLDER what it trained on, step by step, and at its end what it came to. With ``--plain``
the script's ``fit`` is that of `PlainTwin`, which trains on what was recorded.
"""

from __future__ import annotations

import argparse
import atexit
import os
import pickle
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.keras.custom_step import SeveralAverages
from kungfu.training.loop import barrier
from kungfu.training.loop.step_calls import SKIPPED, StepCalls
from kungfu.training.loop.training import Training
from kungfu.training.run import Run
from tests.jobs.programs.plain_twin import PlainTwin
from tests.jobs.programs.program_parts import await_offer, die, options, own_id


class Recorder:
    """Records the steps of this peer in a folder, and makes happen to it what the options of the program say."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self._folder, self._given = folder, given
        self.phase, self.found = -1, dict[str, Any]()

    def install(self) -> None:
        """From now on `attach`, the step, and the barrier are watched."""
        attach, step, average = kf.keras.attach, StepCalls.call, barrier.average_statistics

        def attached(model: Any, **given: Any) -> Any:
            self.phase, self.found["model"] = self.phase + 1, model
            policy = kf.policies.schedule(self._given.schedule, keep="global_batch_size")
            return attach(model, **{**given, "policies": [policy]})

        def averaged(run: Run) -> None:
            average(run)
            self._write(f"averages/{self.phase}-{run.steps():05}", None)

        def stepping(calls: StepCalls, function: Any, batch: tuple[Any, ...], named: dict[str, Any]) -> Any:
            self.found["training"] = Training(calls)
            return self._step(calls, lambda: step(calls, function, batch, named), batch)

        kf.keras.attach, barrier.average_statistics, StepCalls.call = attached, averaged, stepping
        if self._given.between:
            self._die_between_applications()

    def _die_between_applications(self) -> None:
        """A peer is killed once the first application of a step is done on it, and before the message of the second."""
        average = SeveralAverages.average

        def die_between(step: Any, view: Any) -> Any:
            if [int(step) + 1, *map(int, view)] == self._given.between:
                die()
            return np.float64(0.0)

        def average_or_die(averages: SeveralAverages, optimizer: Any, gradients: Any, loss: Any) -> Any:
            if averages._run.trace.averages == 1:
                state = averages._run.graph_state
                place = tf.stack([state.view.size.read_value(), state.view.rank.read_value()])
                # These gradients are taken at what the first application has left.
                with tf.control_dependencies(list(gradients)):
                    nothing = tf.py_function(die_between, [state.progress.step.read_value(), place], tf.float64)
                nothing.set_shape(())
                gradients = [one + tf.cast(nothing, one.dtype) for one in gradients]
            return average(averages, optimizer, gradients, loss)

        SeveralAverages.average = average_or_die

    def _step(self, calls: StepCalls, call: Callable[[], Any], batch: tuple[Any, ...]) -> Any:
        run = calls.run
        before, number = calls.position(), run.steps() + 1
        if not before.version:  # it only joins
            return call()
        if self._given.die == [number, before.size, before.rank]:
            die()
        statistics = run.state.classes.averaged.values()
        kept = [one.numpy() for one in statistics]
        result = call()
        moved = any(np.any(one.numpy() != was) for one, was in zip(statistics, kept, strict=True))
        if result is not SKIPPED or moved:
            self._write(
                f"slices/{self.phase}-{number:05}/{before.version:03}-{before.rank}.pickle",
                {
                    "epoch": before.epoch, "offset": before.offset, "version": before.version, "size": before.size,
                    "rank": before.rank, "peer": run.trained.peer, "done": result is not SKIPPED,
                    "empty": calls.stamps.of(tf.nest.flatten(batch)).empty,
                    "batch": tf.nest.map_structure(lambda one: one.numpy(), batch[0]),
                },
            )  # fmt: skip
        if result is not SKIPPED and (count := self._given.wait.get(number)):
            # Until rank 0 has heard of so many offers: then joiners come in after the next step, however slow they are.
            await_offer(self._folder / "log" / "events.jsonl", Training(calls), count)
        return result

    def _write(self, name: str, content: Any) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_bytes(pickle.dumps(content))
        beside.rename(path)  # a peer may be killed meanwhile


def leave(path: Path, found: dict[str, Any]) -> None:
    """What this process came to; nothing where it was ended by an error before its ``fit``."""
    if getattr(found.get("model"), "history", None) is None:
        return
    model, training = found["model"], found.get("training")
    content = {
        "left": training is not None and training.left,
        "traces": 1 if training is None else training.traces(),
        "history": model.history.history,
        "weights": {one.path: np.asarray(one) for one in model.weights},
        "samples": 0 if training is None else int(training._run.graph_state.progress.samples),
    }
    path.write_bytes(pickle.dumps(content))


def main() -> None:
    # Sizes by step, the number of offers to await after a step, and the step, size and rank of a peer that is killed:
    # before that step, or between its applications.
    given = options(folder=Path(), script=Path(), words=[], plain=0, schedule={}, wait={}, die=None, between=None)
    if given.plain:
        twin = PlainTwin(given.folder)
        kf.keras.attach = twin.attach
        atexit.register(lambda: leave(given.folder / "plain.pickle", twin.found))
    else:
        recorder = Recorder(given.folder, given)
        recorder.install()
        number = own_id()
        atexit.register(lambda: leave(given.folder / f"{number}.pickle", recorder.found))
    for name in ("sklearn", "matplotlib"):
        sys.modules.pop(name, None)  # the tests' programs do without them
    sys.argv = [str(given.script), *given.words]
    runpy.run_path(str(given.script), run_name="__main__")


if __name__ == "__main__":
    main()
