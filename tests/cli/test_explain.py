"""``kungfu explain``: text on standard output, and no TensorFlow in the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kungfu.compiler import compile_policies, explain, summarize
from kungfu.policies import gns_batch
from tests.cli.conftest import Printed

SPEC = "kungfu.policies:gns_batch(max_peers=8)"


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        (["kungfu.policies:gns"], "kungfu.policies has no 'gns'"),
        ([SPEC, "kungfu.policies:schedule({100: 4})"], "'gns_batch', 'schedule' all rescale the cluster"),
    ],
)
def test_policies_that_do_not_resolve_or_conflict_are_refused_like_at_attach(
    specs: list[str], why: str, printed: Printed
) -> None:
    assert why in printed("explain", *specs, code=2)


def test_several_policies_are_explained_as_one_job(printed: Printed, tmp_path: Path) -> None:
    watching = tmp_path / "watching.py"
    rule = "kf.control.every(7).call(print, kf.monitor.noise_scale_estimate(training).value)"
    watching.write_text(f"import kungfu as kf\n@kf.policy\ndef watching(training):\n    return {rule}\n")
    summary = printed("explain", SPEC, f"{watching}:watching")
    text = printed("explain", SPEC, f"{watching}:watching", "--ir", "--monitors", "open")
    assert "\ngns_batch and watching share noise_scale\n" in summary
    assert "\ngns_batch and watching share noise_scale, and " in text
    assert len(summary.splitlines()) <= 30
    assert text.count("all_reduce sum(") == 5


def test_the_whole_plan_is_shown_by_ir_alone(printed: Printed) -> None:
    plan = compile_policies([gns_batch(max_peers=8)])
    assert printed("explain", SPEC).splitlines()[1:] == summarize(plan).splitlines()[1:], "below the policy's origin"
    assert printed("explain", SPEC, "--ir") == explain(plan)
    assert printed("explain", SPEC, "--ir", "--monitors", "open") == explain(plan, monitors="open")
    assert "--monitors open: chooses among the nodes that --ir shows; add --ir" in printed(
        "explain", SPEC, "--monitors", "open", code=2
    )


def test_with_averages_of_models_the_reaction_time_of_each_rule_is_shown(printed: Printed) -> None:
    rules = ["kungfu.policies:schedule({100: 4})", "kungfu.policies:stop_on_nan"]
    summary = printed("explain", *rules, "--average-models", "16")
    said = "  reacts   in the next step that averages models (H = 16), at most 15 steps after it is due"
    assert summary.count(said) == 2
    assert "reacts" not in printed("explain", *rules)
    assert "uses training.mean_grads" in printed("explain", SPEC, "--average-models", "16", code=2)
    assert "takes a whole number of steps" in printed("explain", *rules, "--average-models", "0", code=2)


def test_as_json_it_is_one_document(printed: Printed) -> None:
    document = json.loads(printed("explain", SPEC, "--json"))
    none = dict.fromkeys(("messages_per_step", "gated_messages", "floats_per_peer"), 0)
    assert document["costs"] == {**none, "fixed_floats": 5, "state_bytes": 99, "folds": 5}


def test_it_needs_no_tensorflow() -> None:
    program = f"import sys; from kungfu.cli.main import main; main(['explain', {SPEC!r}]); "
    words = [sys.executable, "-c", program + "sys.exit('tensorflow' in sys.modules)"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "0 extra messages per step" in ended.stdout


def test_the_cookbook_shows_what_it_prints(printed: Printed) -> None:
    page = Path(__file__).parents[2] / "docs" / "policies.md"
    _, _, shown = page.read_text().partition("$ kungfu explain 'gns_batch(max_peers=8)'\n")
    assert shown.partition("```")[0] == printed("explain", "gns_batch(max_peers=8)")
