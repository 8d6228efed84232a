"""The benchmarks run, in small here and without a look at their times, and refuse bad arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import autoscaling, hosts, joining, keras, stragglers
from tests.soak import SOAK

ROOT = Path(__file__).parents[2]


def figures_of(name: str, *words: str, folder: Path) -> dict[str, Any]:
    """What a benchmark that runs in this folder prints last."""
    command, environment = [sys.executable, "-m", f"benchmarks.{name}", *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


OF_A_RUNTIME = ("--jobs", "1", "--rounds", "3", "--samples", "4", "--device-ms", "0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "figure"),
    [
        (["policy_overhead", "--rounds", "3", "--samples", "4", "--large-rounds", "0"], "processor"),
        (["runtime_overhead", *OF_A_RUNTIME], "overhead"),
        (["runtime_overhead", *OF_A_RUNTIME, "--watched"], "watched_overhead"),
        (["autoscaling", "--quick", "--seconds", "3"], "worst_distance_from_best"),
        (["stragglers", "--quick", "--seconds", "3"], "within_no_stragglers"),
        (["utility", "--quick"], "linear_low_ratio"),
        (["adaptive_batch", "--seeds", "1", "--loss", "3.0"], "over_best_static"),
        (["hybrid", "--seeds", "2"], "below_small"),
        (["local_steps", "--seeds", "1", "--steps", "100"], "faster"),
        (["joining", "--rounds", "1", "--megabytes", "1"], "replaced_s"),
        (["hosts", "--rounds", "1"], "leader_gap_s"),
    ],
)
@SOAK
def test_it_gives_its_figures(words: list[str], figure: str, tmp_path: Path) -> None:
    assert figure in figures_of(*words, folder=tmp_path)
    if words[0] in ("autoscaling", "stragglers", "utility"):
        assert (tmp_path / f"runs/benchmarks/{words[0]}.png").stat().st_size > 1000


BAD_SECONDS = (["--seconds", "0"], ["--seconds", "nan"], ["--seconds", "much"], ["--unknown"])
BAD_TURNS = (["--rounds", "1"], ["--steps", "15"], ["--ways", "slow"])
BAD_LINKS = (["--rounds", "0"], ["--mbit", "0"], ["--megabytes", "inf"])
BAD = {
    autoscaling: (*BAD_SECONDS, ["--curves", "raw"]),
    stragglers: BAD_SECONDS,
    keras: BAD_TURNS,
    hosts: BAD_LINKS,
    joining: (["--rounds", "0"], ["--megabytes", "much"]),
}


@pytest.mark.parametrize(("module", "words"), [(module, words) for module, several in BAD.items() for words in several])
def test_bad_arguments_are_refused(module: Any, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        module.arguments(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_hosts_that_a_machine_refuses_are_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["hosts"])
    with pytest.raises(SystemExit, match=r"which this machine refuses: the commands unshare, .* are missing"):
        hosts.main()
