"""``kungfu completion bash|zsh|fish``: a script that lets a shell complete ``kungfu`` and ``kungfu-run``.

shtab generates the scripts from the parsers, so a completion does not start Python. Beyond shtab's own completions,
the scripts complete run folders (those in ``runs/`` also by name alone). The words after the program that kungfu-run
starts are the program's arguments, and are completed as files.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import shtab

from kungfu.cli.main import make_parser
from kungfu.cli.run import make_parser as make_run_parser

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
  local -a runs
  [[ $PREFIX == */* ]] || runs=(runs/${(Q)PREFIX}*(N/))
  (( $#runs )) && compadd -U -f -a runs
  _files -/
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
# Bash splits words at ":" and "=", so that "HOST:2" is three words.
_BASH_UP_TO_PROGRAM = """
_kungfu_run_words() {
  local place=1 valued=" @VALUED@ "
  while (( place < COMP_CWORD )); do
    case "${COMP_WORDS[place]}" in
      :|=) (( place += 2 )) ;;
      -*) [[ "$valued" == *" ${COMP_WORDS[place]} "* ]] && (( place += 1 ))
          (( place += 1 ))
          [[ "${COMP_WORDS[place-1]}" == "=" ]] && (( place += 1 )) ;;
      [0-9]*) (( place += 1 )) ;;  # the port that an option may have
      *) compopt -o default 2>/dev/null; COMPREPLY=(); return 0 ;;
    esac
  done
  _shtab_kungfu_run
}
complete -o bashdefault -F _kungfu_run_words kungfu-run
"""
# Digits after an option with an optional value, as in `--page 8080`, are not the program.
_ZSH_UP_TO_PROGRAM = """
_kungfu_run_words() {
  local page=${words[(i)--page]}
  if (( page + 1 < CURRENT )) && [[ ${words[page+1]} == [0-9]* ]]; then
    words[page+1]=()
    (( CURRENT -= 1 ))
  fi
  _shtab_kungfu_run
}
compdef _kungfu_run_words kungfu-run
"""
_FISH_NUMBERS = " ".join(f"'{digit}*'" for digit in range(10))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to ``parser``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "permanent set-up:\n" + "\n".join(f"  {line}" for line in _HOW.values())
    parser.add_argument("shell", choices=SHELLS, help="the shell for which to complete kungfu and kungfu-run")


def run(given: argparse.Namespace) -> int:
    """Prints the completion script for the requested shell."""
    print(completion_script(given.shell))
    return 0


def completion_script(shell: str) -> str:
    """The script that lets a shell, one of `SHELLS`, complete both commands."""
    commands, starter = make_parser(), make_run_parser()
    for parser in (commands, starter):
        _add_completers(parser, shell)
    scripts = [shtab.complete(commands, shell), shtab.complete(starter, shell)]
    return "\n".join([_PREAMBLES[shell], *_MENDED[shell](scripts, starter), ""])


def _for_bash(scripts: Sequence[str], starter: argparse.ArgumentParser) -> list[str]:
    return [*scripts, _BASH_UP_TO_PROGRAM.replace("@VALUED@", _valued(starter))]


def _for_zsh(scripts: Sequence[str], starter: argparse.ArgumentParser) -> list[str]:
    optional = "|".join(word for action in starter._actions if action.nargs == "?" for word in action.option_strings)
    mended = []
    for script in scripts:
        # A value may follow an equals sign; an optional value must.
        script = re.sub(r'^(  "--[\w-]+)(\[.*\]:)', r"\1=\2", script, flags=re.MULTILINE)
        script = re.sub(r'^(  \{-[\w-]+,--[\w-]+)(\}"\[.*\]:)', r"\1=\2", script, flags=re.MULTILINE)
        # All values of a repeatable argument are completed, not only the first, and options after them too.
        mended.append(re.sub(r'^  "(?:\(\*\)|\*):+', '  "*:', script, flags=re.MULTILINE))
    commands, starts = mended
    return [commands, re.sub(rf'^(  "(?:{optional})=)', r"\1-", starts, flags=re.MULTILINE), _ZSH_UP_TO_PROGRAM]


def _for_fish(scripts: Sequence[str], starter: argparse.ArgumentParser) -> list[str]:
    commands, starts = scripts
    starts = re.sub(r"(_run_opts_with_value) .*", rf"\1 {_valued(starter)}", starts)
    starts = starts.replace("      case '*'\n", f"      case {_FISH_NUMBERS}\n        continue\n      case '*'\n", 1)
    # After the program, no word is an option of kungfu-run.
    before = 'test "$_shtab_kungfu_run_cmdpath" = "$argv"'
    starts = starts.replace(before, "test $_shtab_kungfu_run_npos -eq 0")
    starts += "\ncomplete -c kungfu-run -n 'not _shtab_kungfu_run_using' -F"
    # fish calls an option with one dash and several letters an old-style option.
    return [re.sub(r" -s (\w{2,}) ", r" -o \1 ", script) for script in (commands, starts)]


_MENDED: Mapping[str, Callable[[Sequence[str], argparse.ArgumentParser], list[str]]] = {
    "bash": _for_bash,
    "zsh": _for_zsh,
    "fish": _for_fish,
}


def _valued(parser: argparse.ArgumentParser) -> str:
    """The options that require a value, in one line."""
    actions = (action for action in parser._actions if action.nargs not in (0, "?"))
    return " ".join(word for action in actions for word in action.option_strings)


def _add_completers(parser: argparse.ArgumentParser, shell: str) -> None:
    """Sets the completer of each argument of a parser and of its sub-commands."""
    for action in _actions(parser):
        if (completer := _completer(action)) is not None:
            action.complete = completer  # type: ignore[attr-defined]  # shtab reads this attribute
        # zsh would end the name of a value at a colon.
        if shell == "zsh" and isinstance(action.metavar, str):
            action.metavar = action.metavar.replace(":", "\\:")


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
    # Ids of peers and sizes come before the folder; numbers are not completed.
    if action.metavar in ("RUN", "DIR") or action.dest == "words":
        return _RUN_FOLDER
    return dict(shtab.FILE) if action.type is Path else None
