"""``kungfu explain``: text on standard output, and no TensorFlow in the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kungfu.cli.main import explain_command
from kungfu.errors import PolicyError

SPEC = "kungfu.policies:gns_batch(max_peers=8)"


def test_it_prints_the_plan_and_gives_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command([SPEC]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("rule gns_batch  [gns_batch.py:")
    assert "0 extra messages per step" in printed


def test_a_policy_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(PolicyError, match=r"kungfu.policies has no 'gns'"):
        explain_command(["kungfu.policies:gns"])


def test_several_policies_are_explained_as_one_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    watching = tmp_path / "watching.py"
    watching.write_text(
        "import kungfu as kf\n"
        "@kf.policy\n"
        "def watching(training):\n"
        "    return kf.control.every(7).call(print, kf.monitor.gradient_noise_scale(training))\n"
    )
    assert explain_command([SPEC, f"{watching}:watching"], monitors="open") == 0
    printed = capsys.readouterr().out
    assert "\ngns_batch and watching share noise_scale, and " in printed
    assert printed.count("all_reduce sum(") == 3


def test_policies_that_conflict_do_not_explain_but_fail_like_at_attach() -> None:
    with pytest.raises(PolicyError, match="'gns_batch', 'schedule' all rescale the cluster"):
        explain_command([SPEC, "kungfu.policies:schedule({100: 4})"])


def test_as_json_it_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command([SPEC], form="json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["costs"] == {
        "messages_per_step": 0,
        "gated_messages": 0,
        "fixed_floats": 3,
        "floats_per_peer": 0,
        "state_bytes": 63,
        "folds": 5,
    }


def test_it_needs_no_tensorflow() -> None:
    program = f"import sys; from kungfu.cli.main import explain_command; explain_command([{SPEC!r}]); "
    ended = subprocess.run(
        [sys.executable, "-c", program + "sys.exit('tensorflow' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "0 extra messages per step" in ended.stdout
