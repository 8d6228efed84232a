"""A process traces itself on demand, and says why where it cannot."""

from __future__ import annotations

import pytest
import tensorflow as tf

from kungfu.training.telemetry.profiler_trace import write_profiler_trace


@pytest.mark.slow
def test_a_trace_is_written_and_what_is_in_its_way_is_said(tmp_path):
    assert write_profiler_trace(0.01, str(tmp_path / "new" / "trace")) == ""
    assert list((tmp_path / "new" / "trace").rglob("*.xplane.pb"))
    (tmp_path / "file").write_text("no folder")
    assert "File exists" in write_profiler_trace(0.01, str(tmp_path / "file"))
    tf.profiler.experimental.start(str(tmp_path / "own"))
    assert "profil" in write_profiler_trace(0.01, str(tmp_path / "other")).lower(), "the program traces itself"
    tf.profiler.experimental.stop(save=False)
