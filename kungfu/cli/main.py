"""``kungfu``: explains policies and recorded runs, controls running jobs, and forwards to planning commands."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from kungfu.cli.broken_pipe import discard_output, open_closed_streams
from kungfu.cli.run_folder import add_run_folder, newest_run
from kungfu.errors import KungfuError
from kungfu.runtime.core.program_identity import installed_version

_LONG_WORD = re.compile(r"[^\s'\",;:()]{200,}")
_SHOWN = 40

# Commands with a separate module, which has `add_arguments(parser)` and `run(arguments)`.
_MODULES = (
    (
        "doctor",
        "kungfu.cli.doctor.doctor_command",
        "check this machine against the requirements, and suggest remedies",
    ),
    ("replay", "kungfu.cli.replay.replay_command", "run a policy over a recorded run, without training"),
    ("compare", "kungfu.cli.compare", "compare runs: time to a loss, cost, sizes, decisions"),
    ("top", "kungfu.cli.top.top_command", "show all jobs of this machine"),
    ("page", "kungfu.cli.page.page_command", "serve a web page of a run: its state, its history, and buttons"),
    ("chaos", "kungfu.cli.chaos.chaos_command", "inject faults into a running job, and report the effects"),
    ("tensorboard", "kungfu.cli.export.tensorboard", "write a recorded run for TensorBoard"),
    ("completion", "kungfu.cli.completion", "print a shell script that completes commands, options and folders"),
)
# The group of entry points for the commands of `kungfu plan`: modules as above, each with a `SUMMARY`.
_PLANNING = "kungfu.plan"
# The commands of `kungfu.cli.job.job_commands`.
_STEERING = (
    ("status", "show the state of a running job"),
    ("resize", "resize a running job to N peers"),
    ("scale-out", "add N peers to a running job"),
    ("scale-in", "remove peers from a running job"),
    ("migrate", "replace a peer with a new one on a given host"),
    ("checkpoint", "write the state of a running job to disk"),
    ("profile", "measure throughput and efficiency of a running job at every size"),
    ("stop", "end the training of a running job"),
)
_EXITS = """exit codes: 0 done, 2 the command line or an argument is wrong, 130 ended by Ctrl-C"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns its exit code; for a user error, prints one message and returns 2."""
    open_closed_streams()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC reads this on import; the commands import gRPC
    words = sys.argv[1:] if arguments is None else arguments
    parser = make_parser(words)
    _check_command(parser, words[:1])
    given = parser.parse_args(words)
    if given.act is None:
        parser.print_help(sys.stderr)
        return 2
    act: Callable[[argparse.Namespace], int] = given.act
    try:
        code = act(given)
        sys.stdout.flush()
        return code
    except KungfuError as error:
        print(f"kungfu {given.name}: {given.shown(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        discard_output(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return 130


def _check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Exits with code 2 if the first word is not a command, and suggests the closest command."""
    names = ["explain", "why", "draw", *(name for name, *_ in _MODULES), "plan", *(name for name, _ in _STEERING)]
    for word in words:
        if not word.startswith("-") and word not in names:
            planning = [f"plan {name}" for name in entry_points(group=_PLANNING).names]
            near = difflib.get_close_matches(word, [*names, *planning], n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            parser.error(f"{word!r} is no command; {meant}")


def error_line(error: Exception) -> str:
    """The error's text in one line, with very long words shortened.

    Examples:
        >>> error_line(ValueError("trials is " + 5000 * "9"))
        'trials is 9999999999999999999999999999999999999999... (5000 characters)'
    """
    text = " ".join(str(error).split("\n"))
    return _LONG_WORD.sub(lambda word: f"{word[0][:_SHOWN]}... ({len(word[0])} characters)", text)


def make_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the command line; commands that are not among ``words`` are added without their arguments."""
    parser = argparse.ArgumentParser(
        prog="kungfu",
        description="Inspects policies and runs, and controls running jobs; kungfu-run starts a job.",
        epilog=_EXITS,
    )
    parser.add_argument("--version", action="version", version=f"kungfu {installed_version()}")
    parser.set_defaults(act=None, name="", shown=str)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_explain(commands.add_parser("explain", help="show a policy's computations, their schedule and their cost"))
    _add_why(commands.add_parser("why", help="print the decisions of a run and their reasons"))
    _add_draw(commands.add_parser("draw", help="draw a run: size, batch, loss, samples/s and signals over steps"))
    for name, module, what in _MODULES:
        brought = commands.add_parser(name, help=what, description=what)
        if words is None or name in words:  # modules of other commands are not loaded
            _add_module(brought, name=name, module=importlib.import_module(module))
    what = "simulate a cluster's scheduler, or plan a hyperparameter search"
    planning = commands.add_parser("plan", help=what, description=what)
    if words is None or "plan" in words[:1]:
        _add_planning(planning, words or ())
    for name, what in _STEERING:
        brought = commands.add_parser(name, help=what, description=what)
        if words is None or name in words:
            job_commands = importlib.import_module("kungfu.cli.job.job_commands")
            job_commands.add_arguments(brought, name=name)
            brought.set_defaults(act=job_commands.run, name=name)
    return parser


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="MODULE_OR_PATH:POLICY(ARGS); several share one job")
    parser.add_argument("--json", dest="form", action="store_const", const="json", default="text", help="print JSON")
    how = "folded: one line per monitor; open: one line per node of each monitor"
    parser.add_argument("--monitors", choices=["folded", "open"], default="folded", help=how)
    parser.set_defaults(act=_explain, name="explain")


def _add_why(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    spans = "print when each peer stopped, and for how long"
    parser.add_argument("--spans", dest="form", action="store_const", const="spans", default="narrative", help=spans)
    parser.set_defaults(act=_why, name="why")


def _add_draw(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    parser.add_argument("--to", type=Path, metavar="FILE", help="the PNG to write (DIR/run.png)")
    signals = "signals of the policies to draw, each in its own panel (up to 4 that change; '' for none)"
    parser.add_argument("--signals", type=_names, metavar="NAME,NAME", help=signals)
    parser.set_defaults(act=_draw, name="draw")


def _names(text: str) -> tuple[str, ...]:
    """Parses names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _add_planning(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Adds the commands of ``kungfu plan``; if the command line names one of them, loads only that command's module."""
    found = {entry.name: entry for entry in entry_points(group=_PLANNING)}
    if not found:
        parser.error(
            f"no installed package brings a command (entry points {_PLANNING!r}); install kungfu-training again"
        )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    called = found.keys() & {*words[1:2]} or found.keys()
    for name, entry in sorted(found.items()):
        module = _loaded(entry, parser) if name in called else None
        if module is None:
            commands.add_parser(name)
        else:
            brought = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
            _add_module(brought, name=f"plan {name}", module=module)


def _loaded(entry: EntryPoint, parser: argparse.ArgumentParser) -> Any:
    """Loads the module of an entry point; exits with code 2 if it does not load or is not a command's module."""
    try:
        module = entry.load()
        _ = module.SUMMARY, module.add_arguments, module.run
    except (ImportError, AttributeError) as error:
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"
        parser.error(
            f"{entry.name} does not load: {entry.value} of {package}: {type(error).__name__}: {error}; "
            f"install the package again, or what it needs"
        )
    return module


def _add_module(parser: argparse.ArgumentParser, *, name: str, module: Any) -> None:
    module.add_arguments(parser)
    parser.set_defaults(act=module.run, name=name, shown=error_line)


# The commands import their modules on demand, so that help and errors appear quickly.


def _explain(given: argparse.Namespace) -> int:
    """Prints the plan of one job's policies without TensorFlow: nodes, stages, shared parts and costs."""
    from kungfu.compiler import compile_policies, explain, explain_json
    from kungfu.policy_definition.policy_path import load_policy

    plan = compile_policies([load_policy(one) for one in given.specs])
    text = (
        json.dumps(explain_json(plan), indent=2) + "\n"
        if given.form == "json"
        else explain(plan, monitors=given.monitors)
    )
    print(text, end="")
    return 0


def _why(given: argparse.Namespace) -> int:
    from kungfu.cli.why import why_command

    return why_command(given.folder or newest_run(), form=given.form)


def _draw(given: argparse.Namespace) -> int:
    from kungfu.cli.draw.picture import draw_command

    return draw_command(given.folder or newest_run(), given.to, signals=given.signals)


if __name__ == "__main__":
    sys.exit(main())
