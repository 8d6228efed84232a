"""What chaos prints for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kungfu.cli.chaos.outcome import ChaosReport, FaultOutcome, ViewCheck
from kungfu.cli.chaos.print_outcome import injection_line, print_report
from kungfu.cli.chaos.samples import SampleCheck
from kungfu.testing.faults import Injection, parse

KILLED = FaultOutcome("now kill rank 0", 1000.0, 40, (0,), 0.1, 0.25, 6.5, "training continues with 1 peer of 2", True)
REPORT = ChaosReport(
    "job", (KILLED,), (ViewCheck(2, (1,), "one peer"), ViewCheck(3, (1, 2), "equal after rounding")),
    SampleCheck(120, "120 samples of steps 1 to 10", notes=("steps 3 to 4 are not recorded, and had 24 samples",)),
    ("rank 0 (peer 0) is lost: killed by SIGKILL",), None, (),
)  # fmt: skip


def test_what_held_is_told_with_times_states_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, form="text")
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "250 ms", "6.5 s", "equal on all peers in 1 view, 1 view of one peer", "rounding was evened out in view 3",
        "samples: 120 samples of steps 1 to 10", "note: steps 3 to 4 are not recorded", "is lost: killed by SIGKILL",
        "everything held under 1 fault",
    ):  # fmt: skip
        assert words in said


def test_what_did_not_hold_stands_last(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(replace(REPORT, views=(), code=1, problems=("step 3 began after 10",)), form="text")
    *_, told, last = capsys.readouterr().out.strip().split("\n")
    assert last == "did not hold: step 3 began after 10"
    assert "everything held" not in told


def test_a_program_gets_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, form="json")
    found = json.loads(capsys.readouterr().out)
    assert (found["held"], found["problems"], found["faults"][0]["whole_s"]) == (True, [], 6.5)
    assert found["views"][1] == {"version": 3, "peers": [1, 2], "digests": "equal after rounding"}


def test_a_fault_is_told_when_it_happens_or_why_it_does_not() -> None:
    (fault,) = parse("now kill coordinator")
    assert injection_line(Injection(fault, 1000.0, 40, (2,))).endswith("step 40: kill rank 0 (peer 2)")
    assert injection_line(Injection(fault, None, 40, why="the job had ended")).endswith(
        "not carried out: the job had ended"
    )
