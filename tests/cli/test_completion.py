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
from tests.cli.conftest import Printed
from tests.soak import SOAK

BASH = ["bash", "--noprofile", "--norc"]
# The last words of a line in a bash, which splits a word at colons and equals signs itself.
IN_BASH = r"""
source /dev/stdin
COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
handler=$(complete -p ${COMP_WORDS[0]} | sed 's/.*-F \([^ ]*\).*/\1/')
$handler 2>/dev/null
printf '%%s\n' "${COMPREPLY[@]}"
"""
# What a person at a zsh is offered, by a terminal within a terminal; `compadd` is what offers a word there.
IN_ZSH = r"""
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
# It takes a moment to load all commands.
script = cache(completion_script)


def offered(shell: str, line: str, *, folder: Path) -> set[str]:
    """The words that a shell offers in place of the last word of a line."""
    path = folder.parent / f"completion.{shell}"
    path.write_text(script(shell))
    last = [""] if line.endswith(" ") else []
    words = {
        "bash": [*BASH, "-c", IN_BASH % " ".join(map(shlex.quote, shlex.split(line) + last))],
        "fish": ["fish", "--no-config", "-c", f"source {path}; complete -C {shlex.quote(line)}"],
        "zsh": ["zsh", "-f", "-c", IN_ZSH, "zsh", str(path), line, str(folder)],
    }[shell]
    with path.open() as given:
        ran = subprocess.run(words, cwd=folder, stdin=given, capture_output=True, text=True, timeout=120, check=True)
    assert not ran.stderr
    lines = ran.stdout.replace("\r", "").split("\n")
    if shell == "zsh":
        lines = [one.partition("OFFERED:")[2] for one in lines]
    return {one.partition("\t")[0].rstrip("/") for one in lines} - {""}


RUNS = {"runs/20261123-0500", "runs/20261124-0600"}
# The words that every shell offers for the last word of a line.
OFFERED: dict[str, set[str]] = {
    "kungfu resi": {"resize"},
    "kungfu sc": {"scale-in", "scale-out"},
    "kungfu chaos --sch": {"--schedule"},
    "kungfu resize 3 --keep ": {"global_batch_size", "local_batch_size"},
    "kungfu completion ": set(SHELLS),
    "kungfu why 20261123": {"runs/20261123-0500"},
    "kungfu chaos --logdir o": {"other"},
    "kungfu status runs/2026112": RUNS,
    "kungfu-run --attachment ": {"local", "horovod"},
    "kungfu-run -np 2 --max 4 --inel": {"--inelastic"},
    "kungfu-run -np 2 --page --inel": {"--inelastic"},
    "kungfu-run --page 8080 --inel": {"--inelastic"},
}
IN_BASH_ALONE: dict[str, set[str]] = {
    "kungfu plan ": {"simulate", "tuning"},
    "kungfu plan simulate trace.csv --policy eas": {"easy"},
    "kungfu-run --page python train.py --max": set(),
    "kungfu-run -np 2 pyth train.py --max": set(),
    "kungfu-run -np 2 -- python --in": set(),
    "kungfu scale-in 1 runs/20261124": {"runs/20261124-0600"},
    "kungfu-run -H a : 2,b : 4 --inel": {"--inelastic"},
    "kungfu-run --max = 4 --inel": {"--inelastic"},
}
IN_OTHERS: dict[str, set[str]] = {
    "kungfu why --sp": {"--spans"},
    "kungfu resize 3 --keep=lo": {"--keep=local_batch_size"},
    "kungfu scale-out ": set(),  # a number
    "kungfu-run --peers=2 --max=4 --inel": {"--inelastic"},
    "kungfu-run -H a:2,b:4 --inel": {"--inelastic"},
    "kungfu-run -np 2 python train.py --max": set(),
    "kungfu plan sim": {"simulate"},
    "kungfu plan tuning --dead": {"--deadline"},
    "kungfu resize 3 20261123": {"runs/20261123-0500"},
    "kungfu migrate 1 localhost 2026": RUNS,
    "kungfu scale-in 1 2 20261124": {"runs/20261124-0600"},
    "kungfu compare other 2026": RUNS,
    "kungfu-run --resume 2026": RUNS,
    "kungfu-run -np 2 python tr": {"train.py"},
    "kungfu-run --page python tr": {"train.py"},
}


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=SOAK), pytest.param("fish", marks=SOAK)])
def test_a_shell_completes_commands_options_choices_programs_and_folders_of_runs(tmp_path: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here: bash tools/shells.sh")
    folder = tmp_path / "work"
    for name in (*RUNS, "runs/a b", "other"):
        (folder / name).mkdir(parents=True)
    (folder / "train.py").touch()
    expected = OFFERED | (IN_BASH_ALONE if shell == "bash" else IN_OTHERS)
    if shell == "zsh":  # it offers what is to be appended to a folder
        expected["kungfu status runs/2026112"] = {Path(one).name for one in RUNS}
    assert {line: offered(shell, line, folder=folder) for line in expected} == expected
    assert "bash" in offered(shell, "kungfu-run --inelastic -np 2 bas", folder=folder)
    if shell == "bash":
        assert "train.py" in offered(shell, "kungfu-run -np 2 trai", folder=folder)


def test_a_person_at_a_bash_gets_the_word_by_a_tab(tmp_path: Path) -> None:
    (tmp_path / "completion.bash").write_text(script("bash"))
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
    printed, deadline = b"", time.monotonic() + 60.0
    while wanted not in printed:
        printed += os.read(handle, 4096)
        assert time.monotonic() < deadline, printed


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_of_both_commands_that_it_can_read(
    printed: Printed, tmp_path: Path, shell: str
) -> None:
    (tmp_path / "script").write_text(text := printed("completion", shell))
    for word in ("_shtab_kungfu_run", "chaos", "inelastic", "_kungfu_run_dir"):
        assert word in text
    if shutil.which(shell):
        words = [shell, "-n", tmp_path / "script"]
        read = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (read.returncode, read.stderr) == (0, "")
