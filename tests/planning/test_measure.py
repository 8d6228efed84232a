"""A program that is measured in a job of its own, from the command line to the plan."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from kungfu.cli.main import main
from kungfu.errors import UsageError
from kungfu_planning.measure import measure
from tests.soak import SOAK

ROOT = Path(__file__).parents[2]
RUN = "import sys; from kungfu.cli.run import main; sys.exit(main(sys.argv[1:]))"
SPEC = """
experiment: {method: successive-halving, trials: 4, least_iterations: 1, most_iterations: 20, eta: 2}
scaling: {samples_per_iteration: 6400, program: train.py, batch: 64}
cloud: {gpus_per_instance: 2, price: $3.06/h}
"""
PROGRAM = """
import time

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf

model, optimizer = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.01)
training = kf.attach(model, optimizer)


@training.step
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


for x in training.batches(np.eye(4, dtype="float32")[np.zeros(640, int)], batch_size=64, epochs=1_000_000, seed=0):
    step(x)
    time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))))
    for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    return tmp_path


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def left(folder: Path) -> list[psutil.Process]:
    """The processes that work on a folder, or run something in it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()) and process.pid != os.getpid():
            found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_program_is_trained_measured_ended_and_its_search_planned(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text(PROGRAM)
    (folder / "spec.yaml").write_text(SPEC)
    program = f"{sys.executable} {folder / 'train.py'}"
    assert main(["plan", "tuning", "spec.yaml", "--deadline", "10h", "--json", "--profile", program]) == 0
    shown = capsys.readouterr()
    [profile] = folder.glob("runs/profile-*/record/profile.json")
    speeds = {one["size"]: one["samples_per_s"] for one in json.loads(profile.read_bytes())["sizes"]}
    assert list(speeds) == [1, 2]
    curve = json.loads(shown.out)["settings"]["scaling"]
    assert curve["seconds"] == pytest.approx([6400 / speed for speed in speeds.values()])
    assert str(profile.relative_to(folder)) in shown.err
    assert left(folder) == []
    # The same in two commands: the profile of a job that trained, and a plan that names it.
    (folder / "spec.yaml").write_text(SPEC.replace("scaling: {", f"scaling: {{profile: {profile}, "))
    assert main(["plan", "tuning", "spec.yaml", "--deadline", "10h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["scaling"] == curve
    # And from the file, of another program.
    (folder / "spec.yaml").write_text(SPEC.replace("train.py", "other.py"))
    assert main(["plan", "tuning", "spec.yaml", "--deadline", "10h", "--profile", str(profile)]) == 2
    assert "is a profile of `" in capsys.readouterr().err


@SOAK
@pytest.mark.timeout(300)
def test_the_two_commands_of_the_guide_plan_from_a_job_that_trains(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "tuning.md").read_text().partition("## From a job to a plan")[2]
    profile, plan = [line.strip() for line in guide.splitlines() if line.startswith("    kungfu ")][:2]
    plan, _, scaling = plan.partition("    # with scaling: ")
    assert (profile.split()[:2], plan.split()[:3]) == (["kungfu", "profile"], ["kungfu", "plan", "tuning"])
    (folder / "train.py").write_text(PROGRAM)
    scaling = scaling.replace("samples_per_iteration: 50000", "samples_per_iteration: 6400")
    (folder / "SPEC.yaml").write_text(re.sub(r"scaling: .*", f"scaling: {scaling}", SPEC))
    record = profile.split()[-1]
    job = subprocess.Popen(
        [sys.executable, "-c", RUN, "-np", "1", "--max", "2", "--logdir", record, "--", sys.executable,
         "train.py"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + BEGIN_WITHIN_S
        while '"event": "view"' not in _text(folder / record / "events.jsonl") and time.monotonic() < until:
            time.sleep(0.5)
        assert main(profile.replace(" 1 4 ", " 1 2 ").split()[1:]) == 0
        capsys.readouterr()
        assert main([*plan.replace(" 2h", " 10h").split()[1:], "--json"]) == 0
        curve = json.loads(capsys.readouterr().out)["settings"]["scaling"]
    finally:
        main(["stop", record])
        job.wait(END_WITHIN_S)
    sizes = json.loads((folder / record / "profile.json").read_bytes())["sizes"]
    assert curve["seconds"] == pytest.approx([6400 / one["samples_per_s"] for one in sizes])


def test_a_program_that_fails_is_said_with_its_error_and_leaves_no_process(folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit('no data')")
    with pytest.raises(
        UsageError, match=r"the job ended with code 1 before it was measured: kungfu-run: failed: peer 0"
    ):
        measure(f"{sys.executable} {folder / 'train.py'}", low=1, high=2, say=print)
    assert left(folder) == []
    for command, message in (
        ("nowhere train.py", "there is no program 'nowhere'"),
        ("python 'a", "No closing quotation"),
    ):
        with pytest.raises(UsageError, match=message):
            measure(command, low=1, high=2, say=print)


PLAN = "import sys; from kungfu.cli.main import main; sys.exit(main(sys.argv[1:]))"
WAITING = "import pathlib, threading; pathlib.Path('begun').write_text('yes'); threading.Event().wait(300)"
BEGIN_WITHIN_S = END_WITHIN_S = 120.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(other, marks=SOAK) for other in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_to_the_command_ends_the_job_that_it_measures(folder: Path, number: int) -> None:
    (folder / "train.py").write_text(WAITING)
    (folder / "spec.yaml").write_text(SPEC)
    words = ("plan", "tuning", "spec.yaml", "--deadline", "10h", "--profile", f"{sys.executable} train.py")
    os.mkfifo(folder / "begun")
    begun = os.open(folder / "begun", os.O_RDONLY | os.O_NONBLOCK)
    # A command that inherits an ignored signal, as from nohup, ignores it too.
    unignored = partial(signal.signal, number, signal.SIG_DFL)
    command = psutil.Popen([sys.executable, "-c", PLAN, *words], stderr=subprocess.DEVNULL, preexec_fn=unignored)
    started: list[psutil.Process] = []
    try:
        assert select.select([begun], [], [], BEGIN_WITHIN_S)[0]
        started = command.children(recursive=True)
        assert any("train.py" in process.cmdline() for process in started)
        command.send_signal(number)
        assert command.wait(END_WITHIN_S) == 128 + number
        assert psutil.wait_procs(started, timeout=END_WITHIN_S)[1] == []
    finally:
        os.close(begun)
        for process in (command, *started):
            with suppress(psutil.NoSuchProcess):
                process.kill()
