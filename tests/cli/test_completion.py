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
from tests.cli.conftest import Printed
from tests.soak import SOAK

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


# The words that every shell offers for the last word of a line.
OFFERED: dict[str, set[str]] = {
    "kungfu resi": {"resize"},
    "kungfu sc": {"scale-in", "scale-out"},
    "kungfu chaos --sch": {"--schedule"},
    "kungfu resize 3 --keep ": {"global_batch_size", "local_batch_size"},
    "kungfu completion ": set(SHELLS),
    "kungfu-run --attachment ": {"local", "horovod"},
    "kungfu-run -np 2 --max 4 --inel": {"--inelastic"},
    "kungfu-run -np 2 --page --inel": {"--inelastic"},
    "kungfu-run --page 8080 --inel": {"--inelastic"},
}


@pytest.mark.parametrize(
    ("line", "offered"), [
        *OFFERED.items(),
        ("kungfu plan ", {"simulate", "tuning"}),
        ("kungfu plan simulate trace.csv --policy eas", {"easy"}),
        ("kungfu-run --page python train.py --max", set()),
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


# ---- zsh and fish ----------------------------------------------------------------------------------------------------

# What a person at a zsh is offered, by a terminal within a terminal; `compadd` is what offers a word there.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit && compinit -u -D; cd ${(q)3}; eval \"\$(cat ${(q)1})\""
zpty -w shell 'compadd () {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
  local -a offered; local one
  builtin compadd -A offered "$@"
  for one in $offered; do print -r -- "OFFERED:$IPREFIX$one"; done
  builtin compadd "$@"
}'
zpty -w shell "bindkey '^I' complete-word; the-end () { print -r -- TH''E-END }; zle -N the-end; bindkey '^X^X' the-end"
zpty -w shell "print REA''DY"
zpty -r shell said '*READY*'
zpty -w -n shell "$2"$'\t\x18\x18'
zpty -r shell said '*THE-END*'
print -r -- $said
"""


@cache
def script_of(shell: str) -> str:
    return completion_script(shell)


def offered(shell: str, line: str, *, folder: Path, script_at: Path) -> set[str]:
    """What a shell offers for the last word of a line."""
    path = script_at / f"completion.{shell}"
    path.write_text(script_of(shell))
    if shell == "fish":
        words = ["fish", "--no-config", "-c", f"source {path}; complete -C {shlex.quote(line)}"]
    else:
        words = ["zsh", "-f", "-c", ZSH, "zsh", str(path), line, str(folder)]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    assert not ran.stderr
    lines = ran.stdout.replace("\r", "").split("\n")
    if shell == "zsh":
        lines = [one.partition("OFFERED:")[2] for one in lines]
    return {one.partition("\t")[0].rstrip("/") for one in lines} - {""}


@SOAK
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_complete_commands_options_choices_and_folders_of_runs(tmp_path: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here: bash tools/shells.sh")
    folder = tmp_path / "work"
    for name in ("runs/20261123-0500", "runs/20261124-0600", "runs/a b", "other"):
        (folder / name).mkdir(parents=True)
    (folder / "train.py").touch()
    both = {"20261123-0500", "20261124-0600"}
    in_runs = {f"runs/{name}" for name in both}
    expected: dict[str, set[str]] = {
        **OFFERED,
        "kungfu why --sp": {"--spans"},
        "kungfu resize 3 --keep=lo": {"--keep=local_batch_size"},
        "kungfu resize ": set(),  # a number
        "kungfu-run --peers=2 --max=4 --inel": {"--inelastic"},
        "kungfu-run -H a:2,b:4 --inel": {"--inelastic"},
        "kungfu-run -np 2 python train.py --max": set(),
        "kungfu plan sim": {"simulate"},
        "kungfu plan tuning --dead": {"--deadline"},
        "kungfu why 20261123": {"runs/20261123-0500"},
        "kungfu resize 3 20261123": {"runs/20261123-0500"},
        "kungfu migrate 1 localhost 2026": in_runs,
        "kungfu scale-in 1 2 20261124": {"runs/20261124-0600"},
        "kungfu compare other 2026": in_runs,
        "kungfu chaos --logdir o": {"other"},
        "kungfu-run --resume 2026": in_runs,
        # zsh offers what is to be appended to a folder.
        "kungfu status runs/2026112": both if shell == "zsh" else in_runs,
        "kungfu-run -np 2 python tr": {"train.py"},
        "kungfu-run --page python tr": {"train.py"},
    }
    found = {line: offered(shell, line, folder=folder, script_at=tmp_path) for line in expected}
    assert found == expected
    assert "bash" in offered(shell, "kungfu-run --inelastic -np 2 bas", folder=folder, script_at=tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_of_both_commands_that_it_can_read(
    printed: Printed, tmp_path: Path, shell: str
) -> None:
    printed = printed("completion", shell)
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
