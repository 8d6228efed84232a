"""Builds the compiled part of kungfu once for each TensorFlow and each version of the sources, and loads it.

``python -m kungfu.native`` builds it and prints its path; otherwise its first use builds it in about a minute. The
library is stored in the user's cache, not in the package. Its name contains TensorFlow's version and a hash of the
compiler flags and the sources, so that only a matching library is ever loaded. The functions that transfer states,
compare states and replay policies form a separate small library, which loads without TensorFlow.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kungfu.errors import InternalError, KungfuError, UsageError

_HERE = Path(__file__).parent
_POLICY = _HERE / "policy"
_OPS = (_POLICY, _HERE / "fused", _HERE / "all_reduce", _HERE / "step_numbers")
# The functions for state and for the replay of policies need no TensorFlow.
_STATE = (_HERE / "state", _POLICY)
_MARK = re.compile(rb"kungfu-native tensorflow=([0-9A-Za-z.+_-]+)\0")
# No flag may change a result: no -march=native, no fast-math, no fused multiply-add.
_FLAGS = ("-O3", "-fPIC", "-shared", "-fno-trapping-math", "-ffp-contract=off", "-Wall", "-Wextra")
_ERROR_TAIL_LINES = 30
# In the name of a folder for compiling, this follows the name of the lock.
_WORK = ".work-"
# The maximum number of simultaneous compilers: with TensorFlow's headers, each needs a few hundred megabytes.
_COMPILERS = 4

# The types of the result and of the arguments of each C function.
_INT, _LONG, _SECONDS, _TEXT, _POINTER = (
    ctypes.c_int, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p,
)  # fmt: skip
_INTS, _SECONDS_OUT = ctypes.POINTER(_INT), ctypes.POINTER(_SECONDS)
_RANGE = [_POINTER, _LONG, _LONG, _LONG, _INT, _INT, _SECONDS, _POINTER]
_OP_FUNCTIONS: Mapping[str, tuple[Any, list[Any]]] = {
    "kungfu_tensorflow_version": (_TEXT, []),
    "kungfu_memory_bytes": (_LONG, [_INT]),
    "kungfu_group_open": (_INT, [_LONG, *[_INT] * 3, _LONG, _INTS, _SECONDS, _SECONDS, _TEXT, _INT]),
    "kungfu_group_wait_at_most": (_INT, [_LONG, _SECONDS]),
    "kungfu_group_late": (_INT, [_LONG, _INTS, _INT, _SECONDS_OUT, _TEXT, _INT]),
    "kungfu_group_failure": (_INT, [_LONG, _INTS, _INT, _INTS, _SECONDS_OUT, _TEXT, _INT]),
    "kungfu_group_silent": (_INT, [_LONG, _INTS, _INT]),
    "kungfu_group_leave": (_INT, [_LONG]),
    "kungfu_group_close": (_INT, [_LONG]),
}
_STATE_FUNCTIONS: Mapping[str, tuple[Any, list[Any]]] = {
    "kungfu_digest": (None, [_POINTER, _LONG, _POINTER]),
    "kungfu_transfer_ring_bytes": (_LONG, []),
    "kungfu_send_range": (_INT, _RANGE),
    "kungfu_receive_range": (_INT, _RANGE),
    "kungfu_bytecode_open": (_POINTER, [_TEXT, _TEXT, _LONG]),
    "kungfu_bytecode_close": (None, [_POINTER]),
    "kungfu_bytecode_run": (_POINTER, [_POINTER, _LONG, *[_POINTER] * 4]),
}

_loading = threading.Lock()
_loaded: list[NativeLibrary] = []
_loaded_state: list[ctypes.CDLL] = []


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library: the module of its TensorFlow ops, and its C functions through ctypes."""

    ops: Any
    functions: ctypes.CDLL
    path: Path


def cache_folder() -> Path:
    """The folder of this user's cached builds: ``KUNGFU_CACHE``, else ``kungfu`` in the user's cache."""
    read = os.environ.get
    return Path(read("KUNGFU_CACHE") or Path(read("XDG_CACHE_HOME") or Path.home() / ".cache") / "kungfu")


def is_loaded() -> bool:
    """True once `load` has loaded the library into this process; before that, no local attachment can be open."""
    return bool(_loaded)


def load() -> NativeLibrary:
    """The library of this process, built if no cached library matches; later calls return the same object.

    ``KUNGFU_NATIVE_LIBRARY`` names a library to load instead of the cached one, and ``KUNGFU_CACHE`` the cache folder
    (default: ``$XDG_CACHE_HOME/kungfu`` or ``~/.cache/kungfu``).

    Raises:
        UsageError: There is no compiler, or the library was compiled for another TensorFlow.
        InternalError: The sources do not compile; the error contains the compiler's last lines.

    Cost:
        About a minute for a build, otherwise the import of TensorFlow.
    """
    with _loading:
        if not _loaded:
            forced = os.environ.get("KUNGFU_NATIVE_LIBRARY")
            _loaded.append(load_from(Path(forced) if forced else build()))
        return _loaded[0]


def is_available() -> bool:
    """True if ``load`` returns a library, False without a compiler. Builds the library if necessary."""
    try:
        load()
    except UsageError:
        return False
    return True


def prepare() -> None:
    """Builds and loads both libraries in advance; without a compiler, their first use raises the error instead."""
    with suppress(UsageError):
        load_all()


def load_all() -> Path:
    """Builds and loads both libraries; returns the path of the library that contains the TensorFlow ops."""
    load_state()
    return load().path


def handle_of(variable: Any) -> Any:
    """The handle of a variable, for an op of the library that reads or writes the variable. Also records the variable
    in the graph under construction, since TensorFlow records only variables that are read."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    if graph.building_function:  # eager execution records nothing
        graph.watch_variable(variable)
    return variable.handle


def load_state() -> ctypes.CDLL:
    """The C functions that transfer states, compare states and replay policies, built if no cached library matches.
    Raises ``UsageError`` without a compiler."""
    with _loading:
        if not _loaded_state:
            _loaded_state.append(_typed(ctypes.CDLL(str(build_state())), _STATE_FUNCTIONS))
        return _loaded_state[0]


def build(*folders: Path) -> Path:
    """The path of the cached library for the installed TensorFlow; ``folders`` (default: the ops) contain the sources.

    If the library is missing, one process compiles it under a lock; others wait. Raises the errors of ``load``."""
    import tensorflow as tf

    flags = [*_FLAGS, f'-DKUNGFU_TENSORFLOW_VERSION="{tf.__version__}"']
    flags += [re.sub("^-I", "-isystem", flag) for flag in tf.sysconfig.get_compile_flags()]
    return _built(f"kungfu-tensorflow-{tf.__version__}", folders or _OPS, flags, link=tf.sysconfig.get_link_flags())


def build_state() -> Path:
    """The path of the cached library that needs no TensorFlow; compiles the library if it is missing."""
    return _built("kungfu-state", _STATE, list(_FLAGS), link=[])


def check_compiler(*, with_ops: bool) -> None:
    """Checks, without TensorFlow, that the libraries of a job are cached or can be compiled.

    Raises:
        UsageError: A library is not cached, and there is no compiler. The ops count as cached if any library for the
            installed TensorFlow is; if none of these matches, the first use raises the error.
    """
    if shutil.which("g++") is not None:
        return
    from importlib.metadata import PackageNotFoundError, version  # takes a while, and is needed only here

    try:
        tensorflow = version("tensorflow")
    except PackageNotFoundError:
        tensorflow = "*"  # installed under another name, such as tensorflow-cpu
    has_ops = os.environ.get("KUNGFU_NATIVE_LIBRARY") or any(
        cache_folder().glob(f"kungfu-tensorflow-{tensorflow}-*.so")
    )
    if (with_ops and not has_ops) or not _library("kungfu-state", _sources(_STATE), _FLAGS).exists():
        raise _no_compiler()


def _no_compiler() -> UsageError:
    return UsageError(
        "kungfu's native op must be compiled and no g++ is on PATH; "
        "install it (Debian, Ubuntu: apt-get install g++) and run `python -m kungfu.native`"
    )


def _sources(folders: Sequence[Path]) -> list[Path]:
    return sorted(path for one in folders for path in one.iterdir() if path.suffix in (".cc", ".h"))


def _library(name: str, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """The path of a cached library; it exists once the library is compiled."""
    return cache_folder() / f"{name}-{_digest(sources, flags)}.so"


def _built(name: str, folders: Sequence[Path], flags: list[str], *, link: list[str]) -> Path:
    sources = _sources(folders)
    library = _library(name, sources, flags)
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        lock = library.with_suffix(".lock")
        with locked(lock):
            # Another process may have compiled it in the meantime.
            if not library.exists():
                with work_folder(lock) as folder:
                    _compile(sources, [*flags, *link], library, folder=folder)
    return library


def _digest(sources: Sequence[Path], flags: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(flags).encode())
    for source in sources:
        digest.update(b"\0" + source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock on this file during the block; creates the file if necessary, and waits for other processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(lock: Path) -> Iterator[Path]:
    """A temporary folder for compiling, next to ``lock``, which this process holds; also removes the folders of killed
    processes."""
    for left in list(lock.parent.glob(f"*{_WORK}*")):
        name = left.name.partition(_WORK)[0]
        # The previous holder of this lock has ended.
        if name == lock.stem:
            shutil.rmtree(left, ignore_errors=True)
        else:
            _remove_if_abandoned(left, lock.with_name(f"{name}.lock"))
    with tempfile.TemporaryDirectory(dir=lock.parent, prefix=f"{lock.stem}{_WORK}") as folder:
        yield Path(folder)


def _remove_if_abandoned(folder: Path, lock: Path) -> None:
    with suppress(OSError), lock.open("w") as file:  # the lock is another user's, or a process compiles there
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def _compile(sources: list[Path], flags: list[str], library: Path, *, folder: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        raise _no_compiler()
    said = f"kungfu: compiling {library.stem}, once; later programs find it in {library.parent}"
    print(said, file=sys.stderr, flush=True)
    units = [str(source) for source in sources if source.suffix == ".cc"]
    objects = [str(folder / f"{nth}.o") for nth in range(len(units))]
    with ThreadPoolExecutor(min(_COMPILERS, len(os.sched_getaffinity(0)))) as threads:
        commands = [[compiler, "-c", unit, "-o", made, *flags] for unit, made in zip(units, objects, strict=True)]
        list(threads.map(_run_compiler, commands))
    unfinished = folder / library.name
    _run_compiler([compiler, *objects, "-o", str(unfinished), *flags])
    unfinished.rename(library)  # atomic: no process loads a partial file


def _run_compiler(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-_ERROR_TAIL_LINES:])
        raise InternalError(f"kungfu's native op did not compile ({command[0]} gave {done.returncode}):\n{tail}")


def load_from(path: Path) -> NativeLibrary:
    """The library at ``path``; raises ``UsageError`` with both versions if it does not fit the running TensorFlow."""
    import tensorflow as tf

    if (compiled := _compiled_for(path)) != tf.__version__:
        raise UsageError(_mismatch(path, compiled, tf.__version__))
    try:
        ops = tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        raise UsageError(_mismatch(path, compiled, tf.__version__)) from error
    return NativeLibrary(ops=ops, functions=_typed(ctypes.CDLL(str(path)), _OP_FUNCTIONS), path=path)


def _compiled_for(path: Path) -> str:
    """The TensorFlow version for which a library was compiled, read from its bytes, since loading it could crash."""
    try:
        found = _MARK.search(path.read_bytes())
    except OSError as error:
        raise UsageError(f"kungfu's native library {path} cannot be read: {error.strerror}") from error
    return found.group(1).decode() if found else "no version that it names"


def _mismatch(path: Path, compiled: str, running: str) -> str:
    return (
        f"kungfu's native library {path} was compiled for TensorFlow {compiled}, and TensorFlow {running} is running; "
        "unset KUNGFU_NATIVE_LIBRARY if it is set, and run `python -m kungfu.native` to compile it for this one"
    )


def _typed(functions: ctypes.CDLL, types: Mapping[str, tuple[Any, list[Any]]]) -> ctypes.CDLL:
    for name, (result, arguments) in types.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


def print_built(make: Callable[[], Path]) -> None:
    """Prints the path that ``make`` builds and the seconds taken; if ``make`` fails, exits with its error."""
    started = time.monotonic()
    try:
        path = make()
    except KungfuError as error:
        sys.exit(str(error))
    print(f"{path} ({time.monotonic() - started:.1f} s)")
