"""What the doctor makes of what it finds, and what it advises."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from kungfu.cli.doctor.finding import Finding, print_findings
from kungfu.cli.doctor.machine import _descriptors, _folder, _memory, check_machine, free_memory_bytes
from kungfu.cli.doctor.probe import Probe
from kungfu.cli.doctor.software import check_software, installed_libraries, supported_versions

WELL = {
    "tensorflow": {"version": "2.18.1", "gpus": 0, "with CUDA": True},
    "native op": {"path": "/cache/op.so", "seconds": 0.2},
    "horovod": {"version": "0.28.1"},
}
LIBRARIES = dict.fromkeys(("tensorflow", "keras", "numpy", "grpcio", "protobuf"), "1.2")
SUPPORTED = {"tensorflow": SpecifierSet(">=2.18,<2.22"), "protobuf": SpecifierSet(">=5.29,<8")}


def software(probe: Probe | None = None, **given: Any) -> dict[str, Finding]:
    usual = {"attachment": "local", "libraries": LIBRARIES, "supported": {}, "devices": ()}
    return {one.check: one for one in check_software(probe or Probe(WELL), **{**usual, **given})}


def test_where_all_is_there_nothing_is_advised() -> None:
    found = [one for name, one in software().items() if name != "compiler"]
    assert {(one.severity, one.advice) for one in found} == {("fine", "")}


def test_a_process_that_tensorflow_ends_is_reported_with_the_check_that_was_left() -> None:
    found = software(Probe({}, "tensorflow", "ended the process with SIGILL"))
    assert found["TensorFlow"].severity == "problem"
    assert "AVX" in found["TensorFlow"].advice
    assert found["native op"].found == "not tried without TensorFlow"


def with_tensorflow(*, devices: Sequence[str], **result: object) -> Finding:
    return software(Probe({**WELL, "tensorflow": {**WELL["tensorflow"], **result}}), devices=devices)["TensorFlow"]


def test_gpus_that_the_driver_shows_and_tensorflow_does_not_find_are_a_remark() -> None:
    found = with_tensorflow(devices=("0", "1"))
    assert found.severity == "remark"
    assert found.found == "2.18.1 loads, and finds 0 GPUs, and this host has 2 devices: 0, 1"
    assert all(word in found.advice for word in ("tensorflow[and-cuda]", "nvidia-smi", "CUDA_VISIBLE_DEVICES="))
    without = with_tensorflow(devices=("0",), **{"with CUDA": False})
    assert without.severity == "remark"
    assert without.found.endswith("this host has 1 device: 0; it is built without CUDA")
    assert "nvidia-smi" not in without.advice


def test_gpus_that_tensorflow_finds_and_the_driver_does_not_show_have_to_be_named() -> None:
    found = with_tensorflow(gpus=3, devices=())
    assert (found.severity, "CUDA_VISIBLE_DEVICES=0,1,2" in found.advice) == ("remark", True)
    assert with_tensorflow(gpus=1, devices=()).severity == "fine", "all slots share the one"
    assert with_tensorflow(gpus=2, devices=("0", "1")).severity == "fine"


def test_without_a_compiler_the_op_is_a_problem_unless_it_was_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert software()["compiler"].severity == "remark"
    found = software(Probe({**WELL, "native op": {"error": "UsageError: no g++ is on PATH"}}))
    assert (found["compiler"].severity, found["native op"].severity) == ("problem", "problem")
    assert found["compiler"].advice == "Debian, Ubuntu: apt-get install g++"
    assert "python -m kungfu.native" in found["native op"].advice


def test_horovod_is_missed_only_where_the_job_is_to_use_it() -> None:
    without = Probe({**WELL, "horovod": {"error": "UsageError: no module named 'horovod'"}})
    severities = [software(without, attachment=one)["Horovod"].severity for one in ("local", "horovod")]
    assert severities == ["fine", "problem"]


def test_an_extra_that_is_missing_is_named_and_is_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "uvicorn"):
        monkeypatch.setitem(sys.modules, module, None)
    found = software()["extras"]
    assert (found.severity, found.found) == ("fine", "not installed: page, plots")
    assert found.advice.endswith("[page,plots]'")


def test_a_library_that_is_missing_is_named() -> None:
    found = software(libraries={"tensorflow": "2.18.1"})["libraries"]
    missing = "tensorflow 2.18.1; missing: keras, numpy, grpcio, protobuf"
    assert (found.severity, found.found) == ("problem", missing)


def test_what_is_installed_here_is_within_what_the_installed_kungfu_takes() -> None:
    supported = supported_versions()
    assert {*LIBRARIES} <= {*supported}
    assert "cmake" not in supported, "it belongs to an extra"
    assert software(libraries=installed_libraries(), supported=supported)["libraries"].severity == "fine"


def test_of_a_container_what_it_has_left_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("3000\n")
    assert free_memory_bytes(tmp_path) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(tmp_path) == pytest.approx(free_memory_bytes(tmp_path / "nothing"), rel=0.5)


def test_what_is_scarce_is_a_remark_with_the_figure(tmp_path: Path) -> None:
    assert _memory(3 << 30, slots=4).severity == "remark"
    assert (_memory(3 << 30, slots=2).severity, _memory(3 << 30, slots=2).found) == ("fine", "3.0 GiB free for 2 peers")
    assert _descriptors(256).advice == "`ulimit -n 1024` before kungfu-run"
    assert {_descriptors(one).severity for one in (1024, resource.RLIM_INFINITY)} == {"fine"}
    assert _folder("cache", tmp_path / "not" / "there").severity == "fine", "it is made when it is needed"


def test_here_peers_can_run() -> None:
    found = {one.check: one for one in check_machine(slots=1, attachment="local")}
    assert [name for name, one in found.items() if one.severity == "problem"] == []
    assert found.keys() == {
        "cores", "devices", "memory", "shared memory", "descriptors", "cache", "working folder", "ports", "name"
    }  # fmt: skip


def test_the_table_shows_what_is_found_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([Finding("cache", "[bold]/a[/bold]"), Finding("reach", "late", "problem", "start it", "10.0.0.2")])
    table = capsys.readouterr().out
    assert all(words in table for words in ("[bold]/a[/bold]", "reach of 10.0.0.2"))
    assert table.splitlines()[-1] == "1 problem, 0 remarks"


@pytest.mark.parametrize(
    ("tensorflow", "protobuf", "severity", "advice"), [
        *((version, "6.31.1", "fine", "") for version in ("2.18.0", "2.21.1", "2.20.0rc1", "2.19.0.dev20250101")),
        ("2.17.1", "8.0", "problem", "pip install 'tensorflow<2.22,>=2.18' 'protobuf<8,>=5.29'"),
        ("2.22.0", "7.36.2", "remark", "pip install 'tensorflow<2.22,>=2.18'"),
    ],
)  # fmt: skip
def test_a_library_that_is_older_than_is_taken_is_a_problem_and_a_newer_one_a_remark(
    tensorflow: str, protobuf: str, severity: str, advice: str
) -> None:
    libraries = {**LIBRARIES, "tensorflow": tensorflow, "protobuf": protobuf}
    found = software(libraries=libraries, supported=SUPPORTED)["libraries"]
    assert (found.severity, found.advice) == (severity, advice)
    assert f"tensorflow {tensorflow}" in found.found
    if severity == "problem":
        assert found.found.endswith("; kungfu supports: tensorflow <2.22,>=2.18, protobuf <8,>=5.29")
