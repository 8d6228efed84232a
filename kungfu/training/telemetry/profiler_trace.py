"""A trace of TensorFlow's profiler on demand: what this process does for some seconds, while training continues."""

from __future__ import annotations

import time
from pathlib import Path

import tensorflow as tf


def write_profiler_trace(seconds: float, folder: str) -> str:
    """Traces this process, and writes what TensorBoard's profile page shows; called beside the thread that trains.

    Args:
        seconds: The length of the profile.
        folder: The folder to write to; it is made if it is missing.

    Returns:
        What was wrong; empty if the trace is written.

    Cost:
        None but while it traces: then some microseconds for each op of a step; the files are written afterwards.
    """
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tf.profiler.experimental.start(folder, options=options)
        time.sleep(seconds)
        tf.profiler.experimental.stop()
    # The program traces itself at the moment, by a callback say; or the folder cannot be written.
    except (tf.errors.OpError, OSError) as error:
        return str(error)
    # The profiler says nothing where it cannot write.
    return "" if any(Path(folder).rglob("*.xplane.pb")) else f"nothing was written in {folder}"
