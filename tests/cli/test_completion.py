"""The scripts for shells: that of bash in a real bash, those of others where they are on this machine."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import pytest

from kungfu.cli.completion import SHELLS, completion_script
from kungfu.cli.main import main

BASH = ["bash", "--noprofile", "--norc"]


@cache
def script() -> str:
    """That of bash; it takes a moment to load all commands."""
    return completion_script("bash")


def completed(line: str, *, folder: Path) -> set[str]:
    """What bash offers for the last word of a line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    lines = [
        "source /dev/stdin",
        f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}",
        f"handler=$(complete -p {words[0]} | sed 's/.*-F \\([^ ]*\\).*/\\1/')",
        "$handler 2>/dev/null",
        "printf '%s\\n' \"${COMPREPLY[@]}\"",
    ]
    shell = [*BASH, "-c", "\n".join(lines)]
    ran = subprocess.run(shell, cwd=folder, input=script(), capture_output=True, text=True, timeout=60, check=True)
    assert not ran.stderr
    return set(ran.stdout.split("\n")) - {""}


@pytest.mark.parametrize(
    ("line", "offered"), [
        ("kungfu resi", {"resize"}),
        ("kungfu sc", {"scale-in", "scale-out"}),
        ("kungfu chaos --sch", {"--schedule"}),
        ("kungfu resize 3 --keep ", {"global_batch_size", "local_batch_size"}),
        ("kungfu completion ", set(SHELLS)),
        ("kungfu-run --attachment ", {"local", "horovod"}),
        ("kungfu-run -np 2 --max 4 --inel", {"--inelastic"}),
        ("kungfu-run -np 2 pyth train.py --max", set()),
    ],
)  # fmt: skip
def test_bash_completes_commands_options_and_choices(tmp_path: Path, line: str, offered: set[str]) -> None:
    assert completed(line, folder=tmp_path) == offered


def test_bash_completes_folders_of_runs_also_by_their_names_alone(tmp_path: Path) -> None:
    for name in ("runs/20261123-0500", "runs/20261124-0600", "other"):
        (tmp_path / name).mkdir(parents=True)
    assert completed("kungfu why 20261123", folder=tmp_path) == {"runs/20261123-0500"}
    assert completed("kungfu status runs/2026112", folder=tmp_path) == {
        "runs/20261123-0500",
        "runs/20261124-0600",
    }
    assert completed("kungfu chaos --logdir o", folder=tmp_path) == {"other"}
    assert completed("kungfu scale-in 1 runs/20261124", folder=tmp_path) == {"runs/20261124-0600"}


def test_bash_completes_the_program_of_kungfu_run_and_leaves_its_words_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert "train.py" in completed("kungfu-run -np 2 trai", folder=tmp_path)
    assert "bash" in completed("kungfu-run --inelastic -np 2 bas", folder=tmp_path)
    assert completed("kungfu-run -np 2 -- python --in", folder=tmp_path) == set()
    # Bash itself splits a word at colons and equals signs.
    assert completed("kungfu-run -H a : 2,b : 4 --inel", folder=tmp_path) == {"--inelastic"}
    assert completed("kungfu-run --max = 4 --inel", folder=tmp_path) == {"--inelastic"}


def test_a_person_at_a_bash_gets_the_word_by_a_tab(tmp_path: Path) -> None:
    (tmp_path / "completion.bash").write_text(script())
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PS1": "", "TERM": "dumb"}
    with subprocess.Popen(
        [*BASH, "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment
    ) as shell:
        os.close(theirs)
        os.write(ours, f"source {tmp_path}/completion.bash\necho kungfu-is-re''ady\n".encode())
        read_until(ours, b"kungfu-is-ready")
        os.write(ours, b"echo kungfu-run --inel\t")
        os.write(ours, b"\x15kungfu chaos --sched\t")
        read_until(ours, b"--schedule")
        os.write(ours, b"\x15exit\n")
        assert shell.wait(60) == 0
    os.close(ours)


def read_until(handle: int, wanted: bytes) -> None:
    said, deadline = b"", time.monotonic() + 60.0
    while wanted not in said:
        said += os.read(handle, 4096)
        assert time.monotonic() < deadline, said


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_of_both_commands_that_it_can_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str
) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    for word in ("_shtab_kungfu_run", "chaos", "inelastic", "_kungfu_run_dir"):
        assert word in printed
    if shutil.which(shell):
        (tmp_path / "script").write_text(printed)
        read = subprocess.run(
            [shell, "-n", tmp_path / "script"], capture_output=True, text=True, timeout=60, check=False
        )
        assert (read.returncode, read.stderr) == (0, "")


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "nu"])
    assert ended.value.code == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
