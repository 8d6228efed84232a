"""What is asked for before Horovod is built, and that a wheel which fits is found again; make setup builds it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.native import horovod
from kungfu.native.builder import print_built


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache that holds nothing, on a machine without a single program but those of this environment."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("KUNGFU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folder_of(cache: Path) -> Path:
    """The folder that the last build looked for, by its lock."""
    return max(cache.glob("*.lock"), key=lambda lock: lock.stat().st_mtime_ns).with_suffix("")


@pytest.mark.parametrize("missing", ["g++", "patch"])
def test_a_program_that_the_build_needs_is_asked_for_before_anything_is_fetched(
    missing: str, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    for program in {"g++", "make", "patch", "cmake"} - {missing}:
        (tmp_path / "bin" / program).symlink_to(shutil.which("true", path="/bin:/usr/bin"))
    with pytest.raises(UsageError, match=rf"no {missing.replace('+', '.')} is on PATH; install it \(Debian"):
        horovod.build()
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_the_wheel_in_the_cache_is_taken_and_one_of_other_parts_is_another(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError):
        horovod.build()
    folder = folder_of(cache)
    assert f"horovod-{horovod.VERSION}-tensorflow-{tf.__version__}-" in folder.name
    folder.mkdir()
    wheel = folder / f"horovod-{horovod.VERSION}.whl"
    wheel.write_text("a wheel")
    assert horovod.build() == wheel
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    with pytest.raises(UsageError):
        horovod.build()
    assert len({*cache.glob("*.lock")}) == 2, "made a moment apart, their times may be equal"


def test_the_program_of_the_module_ends_with_the_reason(cache: Path) -> None:
    with pytest.raises(SystemExit, match=r"Horovod must be compiled and no g\+\+ is on PATH"):
        print_built(horovod.install)


def test_the_horovod_of_this_environment_has_what_the_patch_leaves_in_it() -> None:
    """Its ops for TensorFlow over Gloo, and neither those for XLA nor PyTorch's; `make setup` has built it."""
    hvd = pytest.importorskip("horovod.tensorflow", reason="horovod is not installed; `make setup` builds it")
    assert hvd.gloo_built()
    folder = Path(sys.modules["horovod"].__file__).parent
    assert sorted(path.parent.name for path in folder.rglob("mpi_lib*.so")) == ["tensorflow"]
