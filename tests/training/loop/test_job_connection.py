"""Beside the thread that trains: a wait that lasts is reported while it lasts, and the process is profiled."""

from __future__ import annotations

from queue import Queue

import pytest
import tensorflow as tf

from kungfu.event_log.events import LateEvent
from kungfu.runtime.attachment.protocol import LateRanks
from kungfu.training.loop.job_connection import watch_late_peers, write_profiler_trace


def test_who_is_late_is_told_once_with_the_steps_done() -> None:
    found: Queue[LateRanks | None] = Queue()
    told: Queue[LateEvent] = Queue()
    found.put(LateRanks((1, 3), 15.0004, "gradients"))
    stop = watch_late_peers(lambda: None if found.empty() else found.get(), told.put, steps=lambda: 811)
    event = told.get(timeout=180.0)
    stop()
    assert event == LateEvent(ranks=(1, 3), where="gradients", step=811, waited_s=15.0)
    assert told.empty()


def test_after_its_end_nobody_looks() -> None:
    looks: Queue[None] = Queue()
    watch_late_peers(lambda: looks.put(None), lambda event: None, steps=lambda: 0)()
    assert looks.empty()


@pytest.mark.slow
def test_a_trace_is_written_and_what_is_in_its_way_is_said(tmp_path):
    assert write_profiler_trace(0.01, str(tmp_path / "new" / "trace")) == ""
    assert list((tmp_path / "new" / "trace").rglob("*.xplane.pb"))
    (tmp_path / "file").write_text("no folder")
    assert "File exists" in write_profiler_trace(0.01, str(tmp_path / "file"))
    tf.profiler.experimental.start(str(tmp_path / "own"))
    assert "profil" in write_profiler_trace(0.01, str(tmp_path / "other")).lower(), "the program traces itself"
    tf.profiler.experimental.stop(save=False)
