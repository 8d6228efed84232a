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

from kungfu import __version__
from kungfu.cli.broken_pipe import discard_output, open_closed_streams
from kungfu.cli.run_folder import add_run_folder, newest_run
from kungfu.errors import KungfuError, UsageError
from kungfu.extras import advice_for

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
    ("mlflow", "kungfu.cli.export.mlflow", "write a recorded run to MLflow"),
    ("completion", "kungfu.cli.completion", "print a shell script that completes commands, options and folders"),
)
# The group of entry points for the commands of `kungfu plan`: modules as above, each with a `SUMMARY`.
_PLANNING = "kungfu.plan"
# The commands of `kungfu.cli.job.job_commands`.
_STEERING = (
    ("status", "show the state of a running job"),
    ("resize", "resize a running job to N peers, hold its size, or move its limits"),
    ("scale-out", "add N peers to a running job"),
    ("scale-in", "remove peers from a running job"),
    ("migrate", "replace a peer with a new one on a given host"),
    ("checkpoint", "write the state of a running job to disk"),
    ("profile", "measure throughput and efficiency of a running job at every size"),
    ("stop", "end the training of a running job"),
)
_OWN = {
    "explain": "show what a policy watches, when it fires, what it asks for, and what it costs",
    "why": "print the decisions of a run and their reasons",
    "draw": "draw a run: size, batch, loss, samples/s and signals over steps",
}
_PLAN = {"plan": "simulate a cluster's scheduler, or plan a hyperparameter search"}
_SUMMARIES = {**_OWN, **{name: what for name, _, what in _MODULES}, **_PLAN, **dict(_STEERING)}
# The commands in the order of `kungfu --help`.
_GROUPS = {
    "run": ("doctor", "completion"),
    "watch": ("status", "top", "page", "tensorboard", "mlflow"),
    "change": ("resize", "scale-out", "scale-in", "migrate", "checkpoint", "stop", "chaos"),
    "understand": ("explain", "why", "draw", "compare", "replay", "profile"),
    "plan": ("plan",),
}
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
    except ModuleNotFoundError as error:
        if not (advice := advice_for(error)):
            raise
        print(f"kungfu {given.name}: {advice}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        discard_output(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return 130


def _check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Exits with code 2 if the first word is not a command, and suggests the closest command."""
    for word in words:
        if not word.startswith("-") and word not in _SUMMARIES:
            planning = [f"plan {name}" for name in entry_points(group=_PLANNING).names]
            near = difflib.get_close_matches(word, [*_SUMMARIES, *planning], n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_SUMMARIES)}"
            parser.error(f"{word!r} is no command; {meant}")


def error_line(error: Exception) -> str:
    """The error's text in one line, with very long words shortened.

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
        formatter_class=_GroupedHelp,
    )
    parser.add_argument("--version", action="version", version=f"kungfu {__version__}")
    parser.set_defaults(act=None, name="", shown=str)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in (name for names in _GROUPS.values() for name in names):
        brought = commands.add_parser(name, help=_SUMMARIES[name], description=_SUMMARIES[name])
        if words is None or name in words:  # modules of other commands are not loaded
            _add_command(brought, name, words or ())
    return parser


class _GroupedHelp(argparse.HelpFormatter):
    """The help of ``kungfu``, with a heading above the first command of each group."""

    def _format_action(self, action: argparse.Action) -> str:
        heading = {names[0]: group for group, names in _GROUPS.items()}.get(action.dest, "")
        return (f"\n  {heading}:\n" if heading else "") + super()._format_action(action)


def _add_command(parser: argparse.ArgumentParser, name: str, words: Sequence[str]) -> None:
    """Adds the arguments of the command `name`."""
    modules = {own: module for own, module, _ in _MODULES}
    if name in _OWN:
        {"explain": _add_explain, "why": _add_why, "draw": _add_draw}[name](parser)
    elif name in _PLAN:
        if not words or words[0] == name:
            _add_planning(parser, words)
    elif name in modules:
        _add_module(parser, name=name, module=importlib.import_module(modules[name]))
    else:
        job_commands = importlib.import_module("kungfu.cli.job.job_commands")
        job_commands.add_arguments(parser, name=name)
        parser.set_defaults(act=job_commands.run, name=name)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="MODULE_OR_PATH:POLICY(ARGS); several share one job")
    whole = "print the compiler's plan: its numbered nodes, stage by stage, and the messages"
    parser.add_argument("--ir", dest="form", action="store_const", const="ir", default="summary", help=whole)
    parser.add_argument("--json", dest="form", action="store_const", const="json", help="print the whole plan as JSON")
    how = "with --ir: one line per monitor (folded), or one line per node of each monitor (open); folded by default"
    parser.add_argument("--monitors", choices=["folded", "open"], help=how)
    averages = (
        "the job averages models every H steps (attach(sync=)): show how long rules may wait for the next average"
    )
    parser.add_argument("--average-models", type=int, metavar="H", help=averages)
    parser.set_defaults(act=_explain, name="explain")


def _add_why(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    spans = "print when each peer stopped, and for how long"
    parser.add_argument("--spans", dest="content", action="store_const", const="spans", default="narrative", help=spans)
    parser.add_argument("--json", dest="form", action="store_const", const="json", default="text", help="print JSON")
    parser.set_defaults(act=_why, name="why")


def _add_draw(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    parser.add_argument("--to", type=Path, metavar="FILE", help="the PNG to write (RUN/run.png)")
    signals = "signals of the policies to draw, each in its own panel (up to 4 that change; '' for none)"
    parser.add_argument("--signals", type=_names, metavar="NAME,NAME", help=signals)
    data = "print the data of the picture as JSON in its place"
    parser.add_argument("--json", dest="form", action="store_const", const="json", default="picture", help=data)
    parser.set_defaults(act=_draw, name="draw")


def _names(text: str) -> tuple[str, ...]:
    """Parses names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _add_planning(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Adds the commands of ``kungfu plan``; if the command line names one of them, loads only that command's module."""
    found = {entry.name: entry for entry in entry_points(group=_PLANNING)}
    if not found:
        parser.error(f"no installed package brings a command (entry points {_PLANNING!r}); install kungfu again")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    called = found.keys() & {*words[1:2]} or found.keys()
    for name, entry in sorted(found.items()):
        module, lacks = _loaded(entry, parser) if name in called else (None, "")
        if lacks and name in words[1:2]:
            parser.error(f"{name} {lacks}")
        if module is None:
            commands.add_parser(name, help=lacks)
        else:
            brought = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
            _add_module(brought, name=f"plan {name}", module=module)


def _loaded(entry: EntryPoint, parser: argparse.ArgumentParser) -> tuple[Any, str]:
    """The module of an entry point, or ``None`` and the advice to install the extra that the module lacks.

    Exits with code 2 if the module does not load, or is not that of a command."""
    try:
        module = entry.load()
        _ = module.SUMMARY, module.add_arguments, module.run
    except (ImportError, AttributeError) as error:
        if advice := advice_for(error):
            return None, advice
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"
        parser.error(
            f"{entry.name} does not load: {entry.value} of {package}: {type(error).__name__}: {error}; "
            f"install the package again, or what it needs"
        )
    return module, ""


def _add_module(parser: argparse.ArgumentParser, *, name: str, module: Any) -> None:
    module.add_arguments(parser)
    parser.set_defaults(act=module.run, name=name, shown=error_line)


# The commands import their modules on demand, so that help and errors appear quickly.


def _explain(given: argparse.Namespace) -> int:
    """Prints the plan of one job's policies without TensorFlow: its summary, or all its nodes."""
    from kungfu.compiler import compile_policies, explain, explain_json, summarize
    from kungfu.control.synchronisation import Synchronisation, average_models
    from kungfu.policy_definition.policy_path import load_policy

    if given.monitors and given.form != "ir":
        raise UsageError(f"--monitors {given.monitors}: chooses among the nodes that --ir shows; add --ir")
    every: int | None = given.average_models
    sync: Synchronisation | None = None if every is None else average_models(every=every)
    plan = compile_policies([load_policy(one) for one in given.specs], sync=sync)
    if given.form == "json":
        print(json.dumps(explain_json(plan), indent=2))
    else:
        summary = summarize(plan, average_every=every or 0)
        print(explain(plan, monitors=given.monitors or "folded") if given.form == "ir" else summary, end="")
    return 0


def _why(given: argparse.Namespace) -> int:
    from kungfu.cli.why import why_command

    return why_command(given.folder or newest_run(), content=given.content, form=given.form)


def _draw(given: argparse.Namespace) -> int:
    folder = given.folder or newest_run()
    if given.form == "json" and given.to is not None:
        raise UsageError(f"--to {given.to} with --json: no picture is drawn; give one of the two")
    from kungfu.cli.draw.picture import draw_command, print_drawn_data

    if given.form == "json":
        return print_drawn_data(folder, signals=given.signals)
    return draw_command(folder, given.to, signals=given.signals)


if __name__ == "__main__":
    sys.exit(main())
