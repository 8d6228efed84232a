"""What policies compute, through the whole graph with two real peers."""

from __future__ import annotations

import json

import pytest

from tests.jobs.harness import ran

pytestmark = pytest.mark.slow


def test_the_noise_scale_of_two_peers_is_that_computed_by_hand(tmp_path):
    ended = ran(tmp_path, "-np", 2, program="signals.py", arguments=["noise_scale", 8, tmp_path / "calls"])
    assert ended.code == 0, ended.output
    assert [row["noise_scale"] for row in ended.metrics] == [pytest.approx(2 / 3, rel=1e-6)] * 8
    assert json.loads((tmp_path / "calls").read_text()) == [[3, pytest.approx(2 / 3)], [6, pytest.approx(2 / 3)]]
    assert [row["loss"] for row in ended.metrics] == [1.0] * 8, "inputs of 3, 0, 1 and 0 have the mean 1"


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
