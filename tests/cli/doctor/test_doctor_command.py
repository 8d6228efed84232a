"""``kungfu doctor`` from its command line to its exit code."""

from __future__ import annotations

import json

import pytest

from kungfu.cli.doctor.probe import Probe, probe
from kungfu.cli.main import main
from tests.cli.conftest import Printed
from tests.lean_start import environment


@pytest.mark.slow
def test_here_nothing_is_in_the_way_of_a_job_and_tensorflow_and_the_op_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[Probe] = []

    def observed(*, deadline_s: float) -> Probe:
        probes.append(probe(deadline_s=deadline_s))
        return probes[-1]

    monkeypatch.setattr("kungfu.cli.doctor.doctor_command.probe", observed)
    for name, value in environment("matplotlib", "sklearn").items():
        monkeypatch.setenv(name, value)
    assert main(["doctor", "-np", "1", "--json"]) == 0
    (tried,) = probes
    assert tried.missing == ""
    assert tried.known["tensorflow"]["version"].startswith("2.")
    assert tried.known["native op"]["path"].endswith(".so")
    assert tried.known["horovod"].keys() in ({"version"}, {"error"})
    found = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in found][:4] == ["kungfu", "libraries", "extras", "TensorFlow"]
    assert all(one.keys() == {"check", "found", "severity", "advice", "host"} for one in found)
    assert "problem" not in {one["severity"] for one in found}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-np", "0"], "-np 0: must be at least one peer"),
        (["--wait", "-1"], "--wait -1: must be from 0 to 3600 seconds"),
        (["--wait", "nan"], "--wait nan: must be from 0 to 3600 seconds"),
        (["-H", "127.0.0.1:1,127.0.0.2:1"], "--self HOST"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(
    words: list[str], told: str, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUNGFU_SECRET", raising=False)
    assert told in printed("doctor", *words, code=2)
