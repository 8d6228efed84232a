"""A run in TensorBoard: what is written for it, read by TensorBoard's own reader."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from kungfu.cli.export.plotted_numbers import is_kept
from kungfu.cli.export.tensorboard import tensorboard_process
from kungfu.cli.export.tensorboard_writer import export_record
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, RecordEvent
from tests.cli.conftest import Printed
from tests.cli.recorded import GROWN, measured, written
from tests.event_log.made import made
from tests.jobs.harness import awaited
from tests.runtime.agent.journal.test_journal import full_disk

STEPS = [
    measured(step, size=2 if step <= 163 else 3, learning_rate=0.1, straggler_fractions={"0": 1.0, "7": 0.5})
    for step in range(1, 480)
]


def _read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars_of(folder: Path) -> Mapping[str, list[tuple[int, float]]]:
    """The points of every curve, as steps and values, by tag."""
    accumulator = _read(folder)
    return {tag: [(one.step, one.value) for one in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def texts_of(folder: Path) -> Mapping[str, list[tuple[int, str]]]:
    """The texts, as steps and what they say, by tag."""
    accumulator = _read(folder)
    return {
        tag: [(one.step, one.tensor_proto.string_val[0].decode()) for one in accumulator.Tensors(tag)]
        for tag in accumulator.Tags()["tensors"]
    }


def exported(record: Path, board: Path) -> Path:
    """The folder that is written of a run that is over."""
    folder = export_record(record, board / "run", is_over=lambda timeout_s: True, report=print)
    assert folder is not None
    return folder


def test_a_run_is_written_with_its_steps_its_changes_and_its_decisions(tmp_path: Path) -> None:
    folder = exported(written(tmp_path, GROWN, metrics=STEPS), tmp_path / "board")
    scalars = scalars_of(folder)
    assert [step for step, _ in scalars["job/loss"]] == list(range(1, 480))
    first = {
        "job/learning_rate": (1, 0.1), "job/samples_per_s": (2, 702.0), "job/step_s": (2, 32 / 702),
        "straggler_fractions/peer_7": (1, 0.5), "rescale/stop_s": (163, 0.134796), "rescale/attach_s": (163, 0.012014),
    }  # fmt: skip
    assert {tag: scalars[tag][0] for tag in first} == {tag: pytest.approx(point) for tag, point in first.items()}
    assert scalars["job/loss"][1] == (2, 1.0)
    assert scalars["job/size"][162:164] == [(163, 2.0), (164, 3.0)]
    assert scalars["signals/noise_scale"][49] == (50, 150.0)
    assert scalars["markers/decision"] == [(50, 3.0), (300, 2.0)]
    assert scalars["markers/rescale"] == [(163, 3.0), (301, 2.0)]
    texts = texts_of(folder)
    step, decision = texts["events/decisions"][0]
    assert (step, "gns_batch wants 3 peers instead of 2 (noise scale 50.7" in decision) == (50, True)
    assert "training stood still for 135 ms" in texts["events/rescales"][0][1]
    assert any("2 peers start: python digits.py" in text for _, text in texts["events/job"])
    assert [step for step, _ in texts["events/views"]] == [479] * 3, "at the newest step that is known"


def test_every_kind_of_change_is_marked(tmp_path: Path) -> None:
    events = [
        made(event="set", time=1.0, step=5, rule="ramp", what="learning rate", to=0.05, over=1, unit="steps"),
        made(event="set", time=1.0, step=6, rule="nan", what="stop", to=None),
        made(event="recovered", time=2.0, step=8, to=1, lost={"1": "killed by SIGKILL"}, parts={"regroup_s": 0.2}),
        made(event="refused", time=3.0, rule="grow", asked=4, size=1, reason="no slot"),
        made(event="checkpoint", time=4.0, step=9, path="/c", bytes=1000, seconds=0.5, stop_s=0.01),
        made(event="checkpoint", time=5.0, step=10, path="/c", error="no space", seconds=0.5, stop_s=0.01),
        made(event="gap", time=6.0, file="metrics.jsonl", lines=3, error="no space"),
    ]
    folder = exported(written(tmp_path, events, metrics=[measured(7)]), tmp_path / "board")
    scalars = scalars_of(folder)
    assert scalars["settings/learning_rate"] == [(5, pytest.approx(0.05))]
    assert scalars["markers/recovery"] == [(8, 1.0)]
    assert scalars["recovery/regroup_s"] == [(8, pytest.approx(0.2))]
    assert scalars["markers/refused"] == [(8, 4.0)]
    assert scalars["checkpoint/bytes"] == [(9, 1000.0)]
    assert {"settings/stop", "markers/checkpoint"} & scalars.keys() == set()
    texts = texts_of(folder)
    assert "killed by SIGKILL" in texts["events/recoveries"][0][1]
    assert "no checkpoint could be written" in texts["events/checkpoints"][1][1]
    assert "metrics.jsonl lacks 3 lines" in texts["events/job"][0][1]


def test_numbers_that_are_none_and_hostile_names_are_written_as_they_are(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\ud800 **bold**"
    rows = [
        {"time": 1.0, "step": 1, "loss": "NaN", hostile: 1e300, "text": "<b>", "list": [1]},
        {"time": 2.0, "step": 2, "loss": "-Infinity", "size": True},
        *({"time": 3.0, "step": step} for step in (-1, 1 << 70, 1.5, None, True)),
        {"step": 3, "loss": 1.0},
    ]
    events = [made(event="lost", time=1.0, peer=1, how="exit code 1", error="<b>bold</b>\n# heading")]
    folder = exported(written(tmp_path, events, metrics=rows), tmp_path / "board")
    scalars = scalars_of(folder)
    assert math.isnan(scalars["job/loss"][0][1])
    assert scalars["job/loss"][1] == (2, -math.inf)
    assert scalars["signals/<script>alert(1)</script>? **bold**"] == [(1, math.inf)], "beyond TensorBoard's numbers"
    assert scalars.keys() == {"job/loss", "signals/<script>alert(1)</script>? **bold**"}
    [(_, text)] = texts_of(folder)["events/job"]
    assert all(line.startswith("    ") for line in text.splitlines()), "a block of code is no Markdown"


def test_of_a_long_run_fewer_steps_are_written(tmp_path: Path) -> None:
    kept = sum(is_kept(step) for step in range(1, 1_000_001))
    assert kept == 10_000 + 9_000 + 9_000
    rows = [measured(step) for step in (9_999, 10_000, 10_001, 10_010)]
    record = written(tmp_path, GROWN[:1], metrics=rows)
    first, second = (exported(record, tmp_path / "board") for _ in range(2))
    assert [step for step, _ in scalars_of(first)["job/loss"]] == [9_999, 10_000, 10_010]
    assert (first.name, second.name) == ("run", "run-2"), "runs of one name do not share a folder"


def test_a_full_disk_delays_what_is_written_and_no_event_is_cut(tmp_path: Path) -> None:
    record, remarks = written(tmp_path, GROWN, metrics=STEPS[:200]), list[str]()

    def looks() -> Iterator[bool]:
        [path] = (tmp_path / "board").rglob("events.out*")
        with (record / "metrics.jsonl").open("a") as file:
            file.write("".join(f"{json.dumps(row)}\n" for row in STEPS[200:210]))
        # Of what is new, a part of the first event has room.
        with full_disk(room_bytes=path.stat().st_size + 100):
            yield False
            yield False
            assert len(scalars_of(path.parent)["job/loss"]) == 200, "the file ends after the last whole event"
        yield False
        yield True

    turns = looks()
    folder = export_record(record, tmp_path / "board" / "run", is_over=lambda _: next(turns), report=remarks.append)
    assert folder is not None
    assert "cannot be written (File too large)" in remarks[0]
    assert "can be written again" in remarks[1]
    assert (len(remarks), len(scalars_of(folder)["job/loss"])) == (2, 210)


def test_a_folder_that_cannot_be_made_is_told_once_and_not_at_all_written(tmp_path: Path) -> None:
    record, remarks = written(tmp_path, GROWN, metrics=STEPS), list[str]()
    (tmp_path / "file").write_text("no folder")
    ends = iter([False, False, True])
    target = tmp_path / "file" / "run"
    assert export_record(record, target, is_over=lambda timeout_s: next(ends), report=remarks.append) is None
    assert [one.removeprefix(str(target)) for one in remarks] == [
        " cannot be written (File exists); training continues, and it is retried",
        f" lacks the end of the run, which could not be written; kungfu tensorboard {record} writes it",
    ]


def test_the_command_writes_a_recorded_run(tmp_path: Path, printed: Printed) -> None:
    record = written(tmp_path, GROWN, metrics=STEPS)
    folder = record / "tensorboard" / record.name
    assert str(folder) in printed("tensorboard", record)
    assert len(scalars_of(folder)["job/loss"]) == 479
    assert "there is no such folder" in printed("tensorboard", tmp_path / "nowhere", code=2)
    (record / "events.jsonl").write_text(event_to_line(RecordEvent(version=RECORD_VERSION + 1)) + "\n")
    assert f"is of version {RECORD_VERSION + 1}" in printed("tensorboard", record, code=2)


@pytest.mark.slow
def test_the_process_follows_a_run_and_ends_with_it_or_says_why_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, remarks = written(tmp_path, GROWN[:4], metrics=STEPS[:10]), list[str]()
    target = tmp_path / "board" / "run"
    (tmp_path / "tensorboard.py").write_text("raise ImportError('a file of the user has this name')")
    monkeypatch.chdir(tmp_path)
    with tensorboard_process(record, target, report=remarks.append):
        awaited(lambda: target.is_dir() and scalars_of(target).get("job/loss"), what="steps", deadline_s=60.0)
        with (record / "metrics.jsonl").open("a") as file:
            file.write('{"time": 2.0, "step": 11, "loss": 0.5}\n')
    assert scalars_of(target)["job/loss"][-1] == (11, 0.5), "the rest is written at the end"
    assert remarks == []
    (record / "events.jsonl").write_text(event_to_line(RecordEvent(version=RECORD_VERSION + 1)) + "\n")
    with tensorboard_process(record, target, report=remarks.append):
        awaited(lambda: any("ends here" in one for one in remarks), what="a remark", deadline_s=60.0)
    assert any(f"is of version {RECORD_VERSION + 1}" in one for one in remarks)


@pytest.mark.slow
def test_a_record_that_is_cut_while_the_process_follows_it_is_told(tmp_path: Path) -> None:
    record, remarks = written(tmp_path, GROWN[:4], metrics=STEPS[:10]), list[str]()
    target = tmp_path / "board" / "run"
    with tensorboard_process(record, target, report=remarks.append):
        awaited(lambda: target.is_dir() and scalars_of(target).get("job/loss"), what="steps", deadline_s=60.0)
        (record / "metrics.jsonl").write_bytes(b"")
        awaited(lambda: any("ends here" in one for one in remarks), what="a remark", deadline_s=60.0)
    assert any("metrics.jsonl was replaced while it was read" in one for one in remarks)


@pytest.mark.slow
def test_the_process_loads_no_tensorflow() -> None:
    check = "import sys, kungfu.cli.export.tensorboard_writer; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=120, check=False).returncode == 0
