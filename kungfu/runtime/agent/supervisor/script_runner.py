"""Starts a peer's Python script, and refuses a Keras ``fit`` that would train a separate model on each peer.

``kungfu-run`` lets an interpreter run this file with the script, or with ``-m`` and a module, as its first arguments.
The script then runs as under ``python script.py`` or ``python -m module``: as ``__main__``, with the same ``__file__``,
``sys.argv`` and ``sys.path``. Like the subreaper, this file is run as a script, and imports almost nothing. It does not
load Keras itself: a finder waits until the script loads Keras. Only a "loaded" spare loads TensorFlow and Keras in
advance, and runs the script when it receives the environment of its peer.
"""

from __future__ import annotations

import functools
import os
import re
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

LOADS_ONLY_KEY = "KUNGFU_LOADS_ONLY"  # in the environment of a process that waits once it has loaded TensorFlow
LOADED = b"\n"  # the message of such a process that has loaded

_PYTHON = re.compile(r"python(3(\.\d+)?)?$")
_HOW = (
    "call kf.keras.attach(model) between model.compile() and model.fit() (docs/keras.md), write the loop with "
    "kf.attach() and training.step as the README shows, or start the script without kungfu-run"
)


def guarded(command: Sequence[str]) -> list[str]:
    """The command with this file inserted before its Python script or module; any other command unchanged.

    Args:
        command: The user's program.

    >>> guarded(["bash", "run.sh"]), guarded(["python", "-c", "print(1)"])
    (['bash', 'run.sh'], ['python', '-c', 'print(1)'])
    >>> [os.path.basename(word) for word in guarded(["/usr/bin/python3.11", "-u", "train.py", "--epochs", "3"])]
    ['python3.11', '-u', 'script_runner.py', 'train.py', '--epochs', '3']
    """
    words = list(command)
    if not words or not _PYTHON.match(os.path.basename(words[0])):
        return words
    index = next((i for i, word in enumerate(words[1:], start=1) if not re.match(r"-[bBdEIOPsSuv]+$", word)), None)
    if index is None:
        return words
    has_script, has_module = words[index].endswith(".py"), words[index] == "-m" and len(words) > index + 1
    return [*words[:index], __file__, *words[index:]] if has_script or has_module else words


class _TrainerFinder:
    """Finds modules through the other finders; adds a check to ``fit`` of the Keras classes that define this method."""

    def __init__(self) -> None:
        # Executed, not imported: an import would load kungfu, and `_check` tests whether the script has loaded kungfu.
        file = os.path.join(os.path.dirname(__file__), *[os.pardir] * 3, "framework_internals.py")
        internals: dict[str, Any] = {"__name__": "framework_internals"}
        with open(file, "rb") as source:
            exec(compile(source.read(), file, "exec", dont_inherit=True), internals)
        self._trainers: dict[str, str] = internals["KERAS_TRAINERS"]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module with a trainer class; its loader adds the ``fit`` check. ``None`` for other modules."""
        if name not in self._trainers:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                _check_first(getattr(module, self._trainers[name], None))

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one module's loader
        return spec


def _check_first(trainer: Any) -> None:
    fit: Callable[..., Any] | None = getattr(trainer, "fit", None)
    if fit is None:
        return

    @functools.wraps(fit)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check(self)
        return fit(self, *args, **kwargs)

    trainer.fit = checked


_warned: list[str] = []


def _check(model: Any) -> None:
    """Raises ``UsageError`` if this ``fit`` must be a mistake (no gradients would be averaged); warns if it may be."""
    module = sys.modules.get("kungfu.training.loop.attach")  # loaded when attach is first used
    attached = [] if module is None else module.attached_models()
    # kungfu was not loaded: the script cannot intend to train together.
    if "kungfu" not in sys.modules:
        raise _refusal(
            "model.fit() was called in a peer of kungfu-run that has not loaded kungfu: each peer would train a model "
            f"of its own on all of the data, and nothing would be averaged; {_HOW}"
        )
    # This model is trained by steps of kungfu.
    if any(one is model and not is_over for one, is_over in attached):
        raise _refusal(
            "model.fit() was called on the model that kf.attach() was given: it goes around training.step, so nothing "
            f"would be averaged, and no policy would see its steps; {_HOW}"
        )
    # Another model of this program is attached, but this model is not, perhaps by mistake.
    is_other = bool(attached) and not any(one is model for one, _ in attached)
    if is_other and "kungfu.keras.attach_model" in sys.modules and "beside" not in _warned:
        _warned.append("beside")
        print(
            f"kungfu: model.fit() of {getattr(model, 'name', '')!r}, which kf.keras.attach() was not given: each peer "
            "trains it apart, on all of the data",
            file=sys.stderr,
            flush=True,
        )
    # The model may be separate from the model that will be attached, or the call may be a mistake.
    if not attached and not _warned:
        _warned.append("apart")
        print(
            "kungfu: model.fit() before kf.attach(): each peer trains this model apart, on what it is given; what is "
            f"attached later becomes rank 0's. If it is the training itself: {_HOW}",
            file=sys.stderr,
            flush=True,
        )


def _refusal(text: str) -> Exception:
    from kungfu.errors import UsageError  # imported here: kungfu needs TensorFlow, which the script has loaded

    return UsageError(text)


def _show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Shows an error as Python does, but without the traceback lines of this file.

    An error in a policy is shown once, by ``kungfu-run``, not by each peer; its message names the lines to fix.
    """
    if _is_shown_by_agent(error):
        return
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _is_shown_by_agent(error: BaseException) -> bool:
    """True if ``error`` and all its causes are errors in a policy, and the agent has received the report."""
    errors = sys.modules.get("kungfu.errors")
    chain, link = [error], error.__cause__
    while link is not None:
        chain.append(link)
        link = link.__cause__
    # The traceback of another error in a policy may show more than its message.
    if errors is None or not all(isinstance(one, errors.PolicyError) for one in chain):
        return False
    from kungfu.runtime.peer.exit_report import is_exit_reported  # imported here: most scripts do not need it

    return is_exit_reported()


def main() -> None:
    """Runs the script, or the module after ``-m``, in place of this file."""
    del sys.argv[0]
    sys.meta_path.insert(0, _TrainerFinder())
    sys.excepthook = _show
    if os.environ.pop(LOADS_ONLY_KEY, ""):
        _load_and_wait()
    run, process = _run_module if sys.argv[0] == "-m" else _run_script, os.getpid()
    try:
        run()
    except Exception as error:
        if os.getpid() == process:  # otherwise this is a child that the script has forked
            _report(error)
        raise


def _load_and_wait() -> None:
    """Loads TensorFlow and Keras, and waits for the environment of a peer on standard input, a socket."""
    import contextlib
    import json

    # Imported so that the script finds them loaded; kungfu is not, as `_check` tests whether the script has loaded it.
    import grpc  # noqa: F401
    import keras  # noqa: F401
    import tensorflow  # noqa: F401  # ruff: isort: skip

    # If the agent has sent the environment and closed its end without reading ``LOADED``, the connection is reset.
    message = b""
    with contextlib.suppress(BrokenPipeError):
        os.write(0, LOADED)
    with contextlib.suppress(ConnectionResetError):
        while received := os.read(0, 1 << 16):
            message += received
    # The agent has ended, or does not need this process any more.
    if not message:
        sys.exit(0)
    os.environ.clear()
    os.environ.update(json.loads(message))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _run_script() -> None:
    script = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    file = os.path.abspath(script)
    program = types.ModuleType("__main__")
    program.__dict__.update(
        __file__=file, __builtins__=__builtins__, __loader__=SourceFileLoader("__main__", file), __cached__=None
    )
    sys.modules["__main__"] = program
    with open(script, "rb") as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, program.__dict__)


def _run_module() -> None:
    del sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _report(error: Exception) -> None:
    """Reports to the agent that an error of kungfu ends the script before ``attach``."""
    errors = sys.modules.get("kungfu.errors")
    if errors is not None and isinstance(error, errors.KungfuError):
        from kungfu.runtime.peer.exit_report import report_unattached_exit  # here: most scripts do not need it

        report_unattached_exit()


if __name__ == "__main__":
    main()
