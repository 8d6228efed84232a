"""Tries TensorFlow, the native op and Horovod in a separate process, since each of them may crash.

``python -m kungfu.cli.doctor.probe`` prints a line of JSON for each step as soon as its result is known. A processor
without TensorFlow's instructions ends the process with SIGILL; a library of an incompatible version ends the process
with an error or a crash. The last printed line shows which step failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_STEPS = ("tensorflow", "native op", "horovod")
_ERROR_LINES = 3


@dataclass(frozen=True)
class Probe:
    """The results of a process that tried each requirement.

    Args:
        known: The results of each finished step, by name; an "error" describes a failure.
        missing: The step in which the process ended; empty if the process finished all steps.
        ended: A description of the end of the process.
    """

    known: Mapping[str, Mapping[str, Any]]
    missing: str = ""
    ended: str = ""


def probe(*, deadline_s: float, command: Sequence[str] = (sys.executable, "-m", __spec__.name)) -> Probe:
    """Runs a process that tries each requirement in turn; the first run on a machine compiles the native op."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(
        list(command), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, process_group=0,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            _end_group(process)
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            return _read(output, f"was not done within {deadline_s:g} s")
        # Ctrl-C reaches only the doctor, since the process has a separate group.
        except BaseException:
            _end_group(process)
            raise
    return _read(output, _end(process.returncode, errors))


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kills the process with its children: a compiler would otherwise continue uselessly for a minute."""
    with suppress(ProcessLookupError):  # the whole group has ended
        os.killpg(process.pid, signal.SIGKILL)


def _read(output: str, ended: str) -> Probe:
    known: dict[str, Mapping[str, Any]] = {}
    # Lines that a library prints are ignored.
    for line in output.splitlines():
        if line.startswith('{"step": '):
            result = json.loads(line)
            known[result.pop("step")] = result
    missing = next((step for step in _STEPS if step not in known), "")
    return Probe(known, missing, ended if missing else "")


def _end(code: int, stderr: str) -> str:
    if code < 0:
        return f"ended the process with {signal.Signals(-code).name}"
    tail = " / ".join(line.strip() for line in stderr.splitlines()[-_ERROR_LINES:])
    return f"ended the process with exit code {code}" + (f": {tail}" if tail else "")


def _tensorflow() -> dict[str, Any]:
    import tensorflow as tf

    found = len(tf.config.list_physical_devices("GPU"))
    return {"version": tf.__version__, "gpus": found, "with CUDA": tf.test.is_built_with_cuda()}


def _native_op() -> dict[str, Any]:
    from kungfu.native import load, load_state

    started = time.monotonic()
    load_state()
    return {"path": str(load().path), "seconds": round(time.monotonic() - started, 1)}


def _horovod() -> dict[str, Any]:
    from importlib.metadata import version

    from kungfu.runtime.attachment.horovod.engine import load

    load()
    return {"version": version("horovod")}


def main() -> None:
    """Tries each step and prints its result."""
    steps: tuple[Callable[[], dict[str, Any]], ...] = (_tensorflow, _native_op, _horovod)
    for name, step in zip(_STEPS, steps, strict=True):
        try:
            result = step()
        except Exception as error:  # noqa: BLE001 - the doctor reports any error
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"step": name, **result}), flush=True)


if __name__ == "__main__":
    main()
