"""A script that ``kungfu-run`` starts is what it is under ``python``; what it says of ``fit`` is in ``tests/jobs``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kungfu.runtime.agent.supervisor import script_runner
from kungfu.runtime.agent.supervisor.script_runner import guarded

LOOKS = """
import multiprocessing, os, pickle, sys
import beside

class Own:
    pass

def main():
    print(sys.argv, __name__, __file__, __spec__, __package__, __doc__, sys.path[0], beside.__file__)
    print(sys.modules["__main__"].Own is Own, type(pickle.loads(pickle.dumps(Own()))) is Own, __builtins__ is not None)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(doubled, [3]))

def doubled(x):
    return 2 * x

if __name__ == "__main__":
    main()
"""
ENDS = {
    "exit": "import sys, atexit\natexit.register(lambda: print('at the end', flush=True))\nsys.exit(7)",
    "text": "raise SystemExit('no such thing')",
    "error": "def outer():\n    inner()\ndef inner():\n    raise ValueError('wrong')\nouter()",
    "syntax": "def (:",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error",
}


SCRIPT, MODULE = ("scripts/train.py",), ("-m", "scripts.train")


def ran(folder: Path, *before: str, program: Sequence[str] = SCRIPT) -> tuple[int, str, str]:
    line = [sys.executable, *before, *program, "--epochs", "3"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stdout, done.stderr


def script(folder: Path, text: str) -> None:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "train.py").write_text(text)
    (folder / "scripts" / "beside.py").write_text("")


@pytest.mark.parametrize("program", [SCRIPT, MODULE], ids=["script", "module"])
def test_a_program_sees_what_it_sees_under_python(tmp_path: Path, program: Sequence[str]) -> None:
    of_module = LOOKS.replace("import beside", "from scripts import beside").replace("__spec__", "__spec__.name")
    script(tmp_path, LOOKS if program == SCRIPT else of_module)
    plain = ran(tmp_path, program=program)
    assert plain[0] == 0, plain[2]
    assert ran(tmp_path, script_runner.__file__, program=program) == plain


@pytest.mark.parametrize("how", ENDS)
def test_a_script_ends_as_under_python_with_the_same_words(how: str, tmp_path: Path) -> None:
    script(tmp_path, ENDS[how])
    plain = ran(tmp_path)
    assert plain[0] != 0
    assert ran(tmp_path, script_runner.__file__) == plain


@pytest.mark.parametrize("how", ENDS)
def test_a_module_ends_as_under_python_with_the_same_last_words(how: str, tmp_path: Path) -> None:
    script(tmp_path, ENDS[how])
    code, printed, error = ran(tmp_path, program=MODULE)
    assert code != 0
    guarded_code, guarded_printed, guarded_error = ran(tmp_path, script_runner.__file__, program=MODULE)
    assert (guarded_code, guarded_printed) == (code, printed)
    assert guarded_error.splitlines()[-1:] == error.splitlines()[-1:]
    assert script_runner.__file__ not in guarded_error


NO_SCRIPTS = "bash run.sh|python -c print(1)|python -W error train.py|python -m|python folder|python|./train.py|"


@pytest.mark.parametrize("line", NO_SCRIPTS.split("|"))
def test_what_is_no_python_with_a_script_is_started_as_it_is(line: str) -> None:
    assert guarded(line.split()) == line.split()


@pytest.mark.parametrize("before", ["/opt/bin/python3.12 -u -B", "python", "python3 -u"])
@pytest.mark.parametrize("program", ["train.py -x", "-m pkg.train a.py"])
def test_a_script_is_started_behind_the_guard_and_keeps_its_words(before: str, program: str) -> None:
    words = [*before.split(), script_runner.__file__, *program.split()]
    assert guarded([*before.split(), *program.split()]) == words
