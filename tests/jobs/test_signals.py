"""What policies compute, through the whole graph with two real peers; see also tests/jobs/test_recording.py."""

from __future__ import annotations

import json

import pytest

from tests.jobs.harness import ran

pytestmark = pytest.mark.slow


def test_two_gates_that_open_in_one_step_exchange_their_messages_in_one_order(tmp_path):
    ended = ran(
        tmp_path, "-np", 2, "--deadline", 10, program="signals.py", arguments=["two_gates", 14, tmp_path / "calls"]
    )
    assert ended.code == 0, ended.output
    # The mean loss is 1: 1 x 1 and 2 x 1 are added; of 1 + 0 and 2 + 1 the larger is 3. Each rule calls in its own
    # steps, also between the other one's post and its barrier, and every sixth step has both.
    second = [[step, 3.0, 2.0] for step in range(2, 15, 2)]
    third = [[step, 3.0, 3.0] for step in range(3, 15, 3)]
    calls = json.loads((tmp_path / "calls").read_text())
    assert calls == sorted([*second, *third])
