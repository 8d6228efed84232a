"""Settings that rules change on a job whose size changes: the same on all peers, the joiner included."""

from __future__ import annotations

import json

import pytest

from tests.jobs.harness import ran

pytestmark = pytest.mark.slow


def test_the_learning_rate_follows_a_rescale_on_all_peers_and_a_policy_ends_training(tmp_path):
    results = tmp_path / "results"
    ended = ran(tmp_path, "-np", 2, "--max", 3, program="settings.py", arguments=["--results", results])
    assert ended.code == 0, ended.output
    assert ended.sizes == [2, 3]
    found = [json.loads(path.read_text()) for path in results.iterdir()]
    assert [one["stopped"] for one in found] == [True] * 3
    assert len({one["weights"] for one in found}) == 1
    longest = max((one["steps"] for one in found), key=len)
    rates = {step: rate for step, rate, _ in longest}
    for one in found:
        assert {step: rate for step, rate, _ in one["steps"]}.items() <= rates.items(), "one rate a step, on all peers"
    (rescale,) = ended.all_of("rescale")
    joined = rescale["step"]
    # 8 samples a step become 12, so 0.125 becomes 0.1875, in 4 steps from the first one of the new view.
    assert [rates[joined + step] for step in range(7)] == [0.125, 0.125, 0.140625, 0.15625, 0.171875, 0.1875, 0.1875]
    settings = [(event["rule"], event["what"], event["to"]) for event in ended.all_of("set")]
    assert settings == [("linear_scaling", "learning rate", 0.1875), ("enough", "stop", None)]
