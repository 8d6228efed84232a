"""``kungfu plan tuning``: plans the GPUs of each stage from a specification and a deadline."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from kungfu.errors import UsageError
from kungfu_planning.cli.table_console import TableConsole
from kungfu_planning.measure import measure
from kungfu_planning.pictures import write_picture
from kungfu_planning.tune.baselines import Search
from kungfu_planning.tune.comparison import (
    Comparison,
    TuningReport,
    as_tables,
    compare_all,
    draw_comparison,
    tuning_report,
)
from kungfu_planning.tune.spec.tuning_spec import TuningSpec, read_spec, read_unmeasured, tuning_schema
from kungfu_planning.units import duration_s

SUMMARY = "plan a hyperparameter search under a deadline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``kungfu plan tuning``."""
    parser.description = (
        "Plan a hyperparameter search: the cheapest allocation of GPUs to its stages that meets a deadline."
    )
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC.yaml", help="the search, its scaling, the cloud")
    parser.add_argument(
        "--deadline", metavar="TIME", help='time by which the search must finish, for example "20m" or "1h30m"'
    )
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="SHARE",
        help="share of runs that must meet the deadline, for example 0.95; by default the mean run must meet it",
    )
    parser.add_argument(
        "--profile",
        metavar="'COMMAND'|FILE",
        help="before planning, run a job that measures how the program scales, as in --profile 'python train.py';"
        " or use a profile.json of kungfu profile",
    )
    parser.add_argument(
        "--profile-sizes",
        metavar="MIN:MAX",
        help="peers to measure (1 to the GPUs of an instance); only with a COMMAND",
    )
    parser.add_argument("--measured-only", action="store_true", help="restrict trials to measured numbers of GPUs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--plot",
        nargs="?",
        const=Path("tuning.png"),
        type=Path,
        metavar="FILE",
        help="draw the plan (default: %(const)s)",
    )
    parser.add_argument(
        "--schema",
        nargs="?",
        const="spec",
        choices=("spec", "output"),
        help="print the JSON schema of SPEC.yaml, or of the --json output, and exit",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plans, prints and draws; returns the exit status.

    Raises:
        UsageError: The input cannot be planned.
    """
    if arguments.schema:
        schema = tuning_schema() if arguments.schema == "spec" else msgspec.json.schema(TuningReport)
        print(json.dumps(schema, indent=2))
        return 0
    if arguments.spec is None:
        raise UsageError("no specification is given; write: kungfu plan tuning SPEC.yaml --deadline 20m")
    if arguments.plot is not None:
        import matplotlib  # noqa: F401 - if it is missing, the error comes before a profile is measured
    deadline_s = _deadline_s(arguments)
    Search(confidence=arguments.confidence)  # refuses an invalid share before a profile is measured
    spec = read_spec(arguments.spec, profile=_profile(arguments), measured_only=arguments.measured_only)
    found = _plan(spec, deadline_s=deadline_s, confidence=arguments.confidence)
    report = tuning_report(found, spec=spec, confidence=arguments.confidence)
    if arguments.plot is not None:
        _draw(found, path=arguments.plot)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        return 0
    console = TableConsole()
    for table in as_tables(found, report=report):
        console.print(table)
    if arguments.plot is not None:
        console.print(f"plot: {arguments.plot}")
    return 0


def _profile(arguments: argparse.Namespace) -> Path | None:
    """The profile that ``--profile`` names, or that is measured now by its command; None without ``--profile``."""
    given, sizes = arguments.profile, arguments.profile_sizes
    if given is None or _is_file(given):
        if sizes is not None:
            raise UsageError("--profile-sizes needs a command that is measured, as --profile 'python train.py'")
        return None if given is None else Path(given)
    # Measuring takes minutes, so other errors are raised first.
    unmeasured = read_unmeasured(arguments.spec)
    unmeasured.simulators()
    low, high = _sizes(sizes) if sizes is not None else (1, unmeasured.cloud.instance.gpus)
    return measure(given, low=low, high=high, say=lambda line: print(line, file=sys.stderr))


def _is_file(given: str) -> bool:
    """True if ``--profile`` names a file: a word that ends in .json, or an existing file that is not a program."""
    if given.endswith(".json") and len(given.split()) == 1:
        return True
    try:
        exists = Path(given).is_file()
    except OSError:  # too long for a name
        return False
    return exists and not given.endswith(".py") and not os.access(given, os.X_OK)


def _sizes(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", text)
    if not found or int(found[1]) > int(found[2]):
        raise UsageError(f"--profile-sizes {text}: give the fewest and the most peers, as 1:4")
    return int(found[1]), int(found[2])


def _deadline_s(arguments: argparse.Namespace) -> float:
    if arguments.deadline is None:
        raise UsageError("no deadline is given; add one, as --deadline 20m")
    deadline_s = duration_s(arguments.deadline)
    if deadline_s <= 0:
        raise UsageError(f"the deadline is {arguments.deadline!r}; give a time above 0, as --deadline 20m")
    return deadline_s


def _plan(spec: TuningSpec, *, deadline_s: float, confidence: float | None) -> list[Comparison]:
    console = Console(stderr=True)
    simulators = spec.simulators()
    each = track(simulators, "planning", console=console, transient=True, disable=not console.is_terminal)
    search = replace(spec.search, confidence=confidence)
    return compare_all(each, deadline_s=deadline_s, search=search, brackets=len(simulators))


def _draw(found: list[Comparison], *, path: Path) -> None:
    try:
        write_picture(draw_comparison(found), path=path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot draw to {path}: {error}; give a writable file, as --plot tuning.png") from error
