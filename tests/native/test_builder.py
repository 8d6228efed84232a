"""The build, its cache and the refusals, with a stand-in for the compiler where the real one would take too long."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from kungfu import native
from kungfu.errors import InternalError, UsageError
from kungfu.native.builder import build, build_state, load_from, locked
from tests.lean_start import environment

STAND_IN = """#!/bin/sh
echo "$@" >> "{log}"
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""

FAILING = "#!/bin/sh\n" + "".join(f"echo op.cc:{line}: error >&2\n" for line in range(1, 32)) + "exit 4\n"


def prepare(monkeypatch: pytest.MonkeyPatch, folder: Path, compiler: str) -> Path:
    """Makes ``compiler`` the only program on PATH, and gives the folder of two sources."""
    (folder / "bin").mkdir()
    (folder / "sources").mkdir()
    (folder / "sources" / "op.cc").write_text("int op;")
    (folder / "sources" / "op.h").write_text("")
    if compiler:
        (folder / "bin" / "g++").write_text(compiler.format(log=folder / "log"))
        (folder / "bin" / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv("KUNGFU_CACHE", str(folder / "cache"))
    return folder / "sources"


def compilations(folder: Path) -> int:
    """How many libraries were made; that each of their units was compiled once before is asserted."""
    calls = [line.split() for line in (folder / "log").read_text().splitlines()]
    units = [call for call in calls if call[0] == "-c"]
    libraries = [call for call in calls if call[0] != "-c"]
    assert len(units) == sum(call.index("-o") for call in libraries)
    return len(libraries)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of two sources, and a stand-in for the compiler."""
    return prepare(monkeypatch, tmp_path, STAND_IN)


def test_a_library_is_built_with_a_message_and_found_again(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = build(sources)
    assert library.read_text() == "library\n"
    assert library.parent == tmp_path / "cache"
    assert tf.__version__ in library.name
    where = f"{library.stem}, once; later programs find it in {tmp_path / 'cache'}"
    assert capsys.readouterr().err == f"kungfu: compiling {where}\n"
    assert build(sources) == library
    assert capsys.readouterr().err == ""
    assert compilations(tmp_path) == 1


def test_without_a_compiler_nothing_is_prepared_and_who_needs_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare(monkeypatch, tmp_path, compiler="")
    monkeypatch.setattr("kungfu.native.builder._loaded", [])
    monkeypatch.setattr("kungfu.native.builder._loaded_state", [])
    native.prepare()
    with pytest.raises(UsageError, match=r"no g\+\+ is on PATH; install it \(Debian, Ubuntu: apt-get install g\+\+\)"):
        native.load()


@pytest.mark.parametrize("changed", ["op.cc", "op.h", "new.cc"])
def test_a_change_in_any_source_is_compiled_anew(changed: str, sources: Path, tmp_path: Path) -> None:
    library = build(sources)
    (sources / changed).write_text("int changed;")
    assert build(sources) != library
    assert compilations(tmp_path) == 2


def test_of_several_that_build_at_once_one_compiles(sources: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        libraries = set(threads.map(build, [sources] * 8))
    assert len(libraries) == 1
    assert compilations(tmp_path) == 1


def test_the_cache_is_where_the_environment_says(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUNGFU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build(sources).parent == tmp_path / "xdg" / "kungfu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert build(sources).parent == tmp_path / "home" / ".cache" / "kungfu"


def test_a_failed_compilation_is_shown_by_its_last_lines_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = prepare(monkeypatch, tmp_path, FAILING)
    with pytest.raises(InternalError, match=r"g\+\+ gave 4") as failure:
        build(sources)
    assert "op.cc:31: error" in str(failure.value)
    assert "op.cc:1: error" not in str(failure.value)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_leftovers_of_killed_compilers_are_removed_when_the_next_one_compiles(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    library = build(sources)
    library.unlink()
    own, gone, busy = (cache / f"{name}.work-x1" for name in (library.stem, "kungfu-state-ab", "kungfu-state-cd"))
    others = cache / "tmpx1"
    for folder in (own, gone, busy, others):
        folder.mkdir()
        (folder / "0.o").touch()
    with locked(cache / "kungfu-state-cd.lock"):
        assert build(sources) == library
    assert [folder.exists() for folder in (own, gone, busy, others)] == [False, False, True, True]


def test_the_loaded_library_names_the_running_tensorflow_and_is_loaded_once() -> None:
    library = native.load()
    assert library.functions.kungfu_tensorflow_version().decode() == tf.__version__
    assert native.load() is library


@pytest.mark.parametrize(("size", "fits"), [(1, False), (2, True), (256, True), (257, False)])
def test_memory_is_known_for_each_size_that_a_group_can_have(size: int, fits: bool) -> None:
    bytes_ = native.load().functions.kungfu_memory_bytes(size)
    assert bytes_ > 2 * 256 * 1024 * size if fits else bytes_ == -1


MARK = b"kungfu-native tensorflow="


def made_for_another_tensorflow(folder: Path) -> Path:
    library = folder / "other.so"
    library.write_bytes(native.load().path.read_bytes().replace(MARK + tf.__version__.encode(), MARK + b"1.15.0"))
    return library


def test_a_library_whose_symbols_are_missing_is_refused_as_another_tensorflows(tmp_path: Path) -> None:
    source, library = tmp_path / "broken.cc", tmp_path / "broken.so"
    mark = (MARK + tf.__version__.encode()).decode()
    source.write_text(f'extern const char mark[] = "{mark}"; extern int nowhere; int* symbol = &nowhere;')
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True, timeout=60)
    with pytest.raises(UsageError, match=f"compiled for TensorFlow {tf.__version__}, and") as refusal:
        load_from(library)
    assert "nowhere" in str(refusal.value.__cause__)


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.so cannot be read: No such file"):
        load_from(tmp_path / "none.so")
    (tmp_path / "none.so").write_bytes(b"not a library")
    with pytest.raises(UsageError, match="compiled for TensorFlow no version that it names, and"):
        load_from(tmp_path / "none.so")


@pytest.mark.slow
def test_the_command_prints_where_the_library_is_or_what_is_wrong_with_it(tmp_path: Path) -> None:
    other = made_for_another_tensorflow(tmp_path)
    fitting, wrong = (
        subprocess.Popen(
            [sys.executable, "-m", "kungfu.native"],
            env=environment("keras") | {"KUNGFU_NATIVE_LIBRARY": str(library)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for library in (native.load().path, other)
    )
    printed, errors = fitting.communicate(timeout=180.0)
    assert (fitting.returncode, printed.startswith(f"{native.load().path} (")) == (0, True), errors
    _, errors = wrong.communicate(timeout=180.0)
    assert wrong.returncode == 1
    both = f"{other} was compiled for TensorFlow 1.15.0, and TensorFlow {tf.__version__} is running; "
    assert re.search(f"{re.escape(both)}.*run `python", errors)
    assert "Traceback" not in errors


def test_a_job_is_refused_without_a_compiler_if_a_library_is_missing(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUNGFU_NATIVE_LIBRARY", raising=False)
    state = build_state()
    native.check_compiler(with_ops=True)
    monkeypatch.setenv("PATH", "")
    native.check_compiler(with_ops=False)
    with pytest.raises(UsageError, match=r"no g\+\+ is on PATH; install it"):
        native.check_compiler(with_ops=True)
    (tmp_path / "cache" / f"kungfu-tensorflow-{tf.__version__}-0.so").touch()
    native.check_compiler(with_ops=True)
    state.unlink()
    with pytest.raises(UsageError, match=r"no g\+\+ is on PATH; install it"):
        native.check_compiler(with_ops=False)
