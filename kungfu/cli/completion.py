"""``kungfu completion bash|zsh|fish``: a script that lets a shell complete ``kungfu`` and ``kungfu-run``.

The scripts are made by shtab from the parsers themselves, so a completion costs the shell no start of Python. Beside
what shtab knows, folders of runs are completed (those in ``runs/`` also by their names alone), and the words after the
program that kungfu-run starts are the program's: they are completed as files.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shtab

from kungfu.cli.main import make_parser
from kungfu.cli.run import make_parser as make_run_parser

__all__ = ["add_arguments", "completion_script", "run"]

SHELLS = ("bash", "zsh", "fish")

_RUN_FOLDER = {"bash": "_kungfu_run_dir", "zsh": "_kungfu_run_dir", "fish": "(_kungfu_run_dir)"}
_PROGRAM = {"bash": "_kungfu_program_file", "zsh": "_normal", "fish": "(__fish_complete_command)"}
_HOW = {
    "bash": 'eval "$(kungfu completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(kungfu completion zsh)"  # in ~/.zshrc, after compinit',
    "fish": "kungfu completion fish | source  # in ~/.config/fish/config.fish",
}
_PREAMBLES = {
    "bash": """
_kungfu_run_dir() {
  compgen -d -- "$1"
  case "$1" in */*) ;; *) compgen -d -- "runs/$1" ;; esac
}
_kungfu_program_file() {
  compgen -c -- "$1"
  compgen -f -- "$1"
}
""",
    "zsh": """
_kungfu_run_dir() {
  _alternative 'runs:run:_files -W runs -P runs/ -/' 'folders:folder:_files -/'
}
""",
    "fish": """
function _kungfu_run_dir
  __fish_complete_directories (commandline -ct)
  for folder in runs/*/
    echo $folder
  end
end
""",
}
# Bash splits words at ":" and "=", so that "HOST:2" is three of them.
_BASH_UP_TO_PROGRAM = """
_kungfu_run_words() {
  local place=1 valued=" @VALUED@ "
  while (( place < COMP_CWORD )); do
    case "${COMP_WORDS[place]}" in
      :|=) (( place += 2 )) ;;
      -*) [[ "$valued" == *" ${COMP_WORDS[place]} "* ]] && (( place += 1 ))
          (( place += 1 ))
          [[ "${COMP_WORDS[place-1]}" == "=" ]] && (( place += 1 )) ;;
      *) compopt -o default 2>/dev/null; COMPREPLY=(); return 0 ;;
    esac
  done
  _shtab_kungfu_run
}
complete -o bashdefault -F _kungfu_run_words kungfu-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Gives ``parser`` the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "for good:\n" + "\n".join(f"  {line}" for line in _HOW.values())
    parser.add_argument("shell", choices=SHELLS, help="the shell that shall complete kungfu and kungfu-run")


def run(given: argparse.Namespace) -> int:
    """Prints the script."""
    print(completion_script(given.shell))
    return 0


def completion_script(shell: str) -> str:
    """The script that lets a shell complete both commands.

    Args:
        shell: "bash", "zsh" or "fish".
    """
    commands, starter = make_parser(), make_run_parser()
    for parser in (commands, starter):
        _add_completers(parser)
    starts = shtab.complete(starter, shell)
    if shell == "bash":
        valued = " ".join(word for action in starter._actions if action.nargs != 0 for word in action.option_strings)
        starts += _BASH_UP_TO_PROGRAM.replace("@VALUED@", valued)
    # After the program nothing is an option of kungfu-run any more.
    if shell == "fish":
        before = 'test "$_shtab_kungfu_run_cmdpath" = "$argv"'
        starts = starts.replace(before, "test $_shtab_kungfu_run_npos -eq 0")
        starts += "\ncomplete -c kungfu-run -n 'not _shtab_kungfu_run_using' -F"
    script = f"{_PREAMBLES[shell]}\n{shtab.complete(commands, shell)}\n{starts}\n"
    # An option of one dash and several letters is an old-style one there.
    return re.sub(r" -s (\w{2,}) ", r" -o \1 ", script) if shell == "fish" else script


def _add_completers(parser: argparse.ArgumentParser) -> None:
    """Says of each argument of a parser, and of its commands, what completes it."""
    for action in _actions(parser):
        completer = _completer(action)
        if completer is not None:
            action.complete = completer  # type: ignore[attr-defined]  # that is how shtab is told


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


def _completer(action: argparse.Action) -> dict[str, Any] | None:
    if action.nargs == argparse.REMAINDER:
        return _PROGRAM
    if action.choices is not None:
        return None
    # Ids of peers and sizes come before the folder; they are numbers, which nothing completes.
    if action.metavar in ("LOGDIR", "DIR") or action.dest == "words":
        return _RUN_FOLDER
    return dict(shtab.FILE) if action.type is Path else None
