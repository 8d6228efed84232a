"""``kungfu-run``: starts a job on this host and shows it until its end."""

from __future__ import annotations

import argparse
import errno
import math
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kungfu.cli.broken_pipe import open_closed_streams
from kungfu.cli.export import exports
from kungfu.cli.hosting import Hosting, add_arguments, read_hosting
from kungfu.cli.run_folder import RUNS, make_folder
from kungfu.errors import KungfuError, UsageError
from kungfu.native import check_compiler
from kungfu.runtime.checkpoints.folder import find
from kungfu.runtime.core.cluster.cluster import ReplacementLimits, SpareLimits
from kungfu.runtime.core.failure import EXIT_CODES
from kungfu.runtime.settings import CheckpointSettings, Deadlines, Limits, Settings

# With the millions of descriptors that some systems allow, programs that loop over all descriptors would take long.
_MOST_DESCRIPTORS = 1 << 16
_KEEP, _MOST_KEPT = 3, 1000  # checkpoints
# The minimum and the maximum of each option, and the range as text.
_RANGES = {
    **dict.fromkeys(("failures", "preemptions"), (0, math.inf, "0 (replace none) or more")),
    "restarts": (0, math.inf, "0 (never) or more"),
    "trace_limit": (0, 1e6, "from 0 (no trace) to 1000000 MB"),
    "report_every": (0.05, 3600, "from 0.05 to 3600 seconds"),
    "compare_every": (1, 1_000_000, "from 1 to 1000000 steps"),
    **dict.fromkeys(
        ("ready_deadline", "deadline", "heartbeat", "grace", "forget_host"), (1, 86400, "from 1 to 86400 seconds")
    ),
}
_EXITS = "\n".join(["exit codes:", *(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job of a command line; returns the job's exit code."""
    if "stdout" in open_closed_streams():
        print("kungfu-run: standard output is closed; what the job prints is in its record alone", file=sys.stderr)
    try:
        parser = make_parser()
        words = exports.completed(sys.argv[1:] if arguments is None else arguments, parser=parser)
        return _run(parser.parse_args(words))
    except KungfuError as error:
        print(f"kungfu-run: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError, OSError) as error:
        if not _is_out_of_room(error):
            raise
        print(
            f"kungfu-run: this machine, or its limits (ulimit -v, -u), have no room for a thread or memory that it "
            f"needs ({error or 'out of memory'}); allow more, or end other programs",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        os._exit(1)  # gRPC may wait forever for a thread that could not be started


def _is_out_of_room(error: BaseException) -> bool:
    """True if memory, a process or a thread could not be allocated."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    # Python has no special exception for a thread that cannot be started.
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, MemoryError) or (bool(frames) and frames[-1] is threading.Thread.start.__code__)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line of ``kungfu-run``."""
    parser = argparse.ArgumentParser(
        prog="kungfu-run",
        description="Start a training program as a job of peers. Policies and commands may change the number of peers.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-np", "--peers", type=int, required=True, metavar="N", help="peers at the start")
    add("--min", type=int, default=1, metavar="A", help="fewest peers (1)")
    add("--max", type=int, metavar="B", help="most peers (N)")
    add("--attachment", choices=("local", "horovod"), default="local", help="the all-reduce (local)")
    add(
        "--policy", action="append", default=[], metavar="SPEC",
        help="MODULE_OR_PATH:POLICY(ARGS), in addition to the program's; may be repeated",
    )  # fmt: skip
    add(
        "--logdir", type=Path, metavar="RUN",
        help="a new folder for the run's record (runs/DATE-TIME); with --restarts, also that of a job to go on with",
    )  # fmt: skip
    add(
        "--checkpoints", type=Path, metavar="DIR",
        help="folder for checkpoints that policies request, shared by all hosts (RUN/checkpoints)",
    )  # fmt: skip
    add(
        "--keep", default=str(_KEEP), metavar="N",
        help="keep the newest N checkpoints (3); N,best or N,best:SIGNAL: and as DIR/best the one with the lowest "
        "mean_loss, or SIGNAL of a policy",
    )  # fmt: skip
    resuming = parser.add_mutually_exclusive_group()
    resuming.add_argument(
        "--resume", type=Path, metavar="DIR", help="resume from a checkpoint (DIR/best), or from the newest one in DIR"
    )
    resuming.add_argument(
        "--resume-if-any", type=Path, metavar="DIR",
        help="like --resume, but start from the beginning if DIR has no checkpoint (for supervisors)",
    )  # fmt: skip
    add("--trace-limit", type=float, default=256.0, metavar="MB", help="limit of trace.jsonl, 0 for no trace (256)")
    add(
        "--report-every", type=float, default=2.0, metavar="S",
        help="seconds between reports of steps to the record; events are reported at once (2)",
    )  # fmt: skip
    add(
        "--compare-every", type=int, default=100, metavar="STEPS",
        help="steps between two comparisons of the checksums of the peers' weights, optimizers and shared values (100)",
    )  # fmt: skip
    _add_waits(parser)
    add(
        "--spares", default="0", metavar="N",
        help="keep N peers ready that join when the job wants a peer, each with the memory of a peer (0); N:loaded: "
        "keep N processes ready that have only loaded TensorFlow, and hold no GPU",
    )  # fmt: skip
    add("--failures", type=int, default=10, metavar="K", help="replace at most K failed peers in the run (10)")
    add(
        "--preemptions", type=int, default=1000, metavar="K", help="replace at most K peers preempted by SIGTERM (1000)"
    )
    add(
        "--restarts", type=int, default=0, metavar="N",
        help="if all peers or too many hosts are lost, or kungfu-run is started again with the same --logdir, go on "
        "from the newest checkpoint; at most N times in a row without a newer one (0: never)",
    )  # fmt: skip
    add(
        "--inelastic", dest="scaling", action="store_const", const="inelastic", default="elastic",
        help="refuse commands that would change the peers (kungfu resize, ...); policies may still change them",
    )  # fmt: skip
    exports.add_arguments(parser)
    add_arguments(parser)
    add("command", nargs=argparse.REMAINDER, help="the program: python train.py ...")
    return parser


def _add_waits(parser: argparse.ArgumentParser) -> None:
    """Adds the options for deadlines."""
    add = parser.add_argument
    add("--ready-deadline", type=float, default=300.0, metavar="S", help="longest wait for a peer to get ready (300)")
    add(
        "--deadline", type=float, metavar="S", help="longest wait for a training peer (60, up to 300 if steps are slow)"
    )
    add("--heartbeat", type=float, default=5.0, metavar="S", help="seconds without heartbeat until a peer is lost (5)")
    add(
        "--forget-host", type=float, default=600.0, metavar="S",
        help="seconds after which a lost host is no host of the job any more (600)",
    )  # fmt: skip
    add(
        "--grace", type=float, default=30.0, metavar="S",
        help="seconds for a process to exit after its program has ended, while others train (30)",
    )  # fmt: skip


def _check_numbers(given: argparse.Namespace, *, maximum: int) -> None:
    """Refuses numbers that are out of their range or contradict each other."""
    if not 1 <= given.min <= given.peers <= maximum:
        raise UsageError(
            f"-np {given.peers} --min {given.min} --max {maximum}: must be 1 <= min <= np <= max; "
            "-np says how many peers the job starts with, --min and --max what a policy may make of it"
        )
    for name, (least, most, range_in_words) in _RANGES.items():
        number = getattr(given, name)
        if number is not None and not least <= number <= most:
            shown = f"{number:g}" if isinstance(number, float) else number
            raise UsageError(f"--{name.replace('_', '-')} {shown}: must be {range_in_words}")


def _new_folder(hosting: Hosting, stamp: str) -> Path:
    """Creates a folder for the run's record, with a suffix if another run began in the same second."""
    try:
        return make_folder(lambda suffix: hosting.folder(RUNS / f"{stamp}{suffix}"))
    except OSError as error:
        folder = hosting.folder(RUNS / stamp)
        raise UsageError(f"{folder}: {error.strerror}; give --logdir, a folder that can be written") from error


def _settings(given: argparse.Namespace, hosting: Hosting, *, maximum: int) -> Settings:
    """The settings of every peer, except the folder of checkpoints."""
    return Settings(
        job=hosting.job,
        peer=-1,
        agent=hosting.local.name,
        secret=hosting.secret,
        attachment=given.attachment,
        limits=Limits(given.min, maximum),
        checkpoints=_checkpoint_settings(given),
        deadlines=_deadlines(given),
        policies=tuple(given.policy),
        recording="steps" if given.trace_limit else "nothing",
        report_s=given.report_every,
        compare_every=given.compare_every,
    )


def _deadlines(given: argparse.Namespace) -> Deadlines:
    """The deadlines; the wait for a training peer adapts to the step times unless ``--deadline`` fixes it."""
    deadlines = Deadlines(
        given.ready_deadline, heartbeat_s=given.heartbeat, grace_s=given.grace, forget_s=given.forget_host
    )  # fmt: skip
    if given.deadline is not None:
        deadlines = replace(deadlines, wait_s=given.deadline, longest_wait_s=given.deadline)
    return deadlines


def _checkpoint_settings(given: argparse.Namespace) -> CheckpointSettings:
    """The settings of checkpoints; finds and checks the checkpoint to resume from before any process starts."""
    option, folder = (
        ("--resume", given.resume) if given.resume_if_any is None else ("--resume-if-any", given.resume_if_any)
    )
    found = None if folder is None else find(folder)
    if folder is not None and found is None:
        if given.resume is not None:
            raise UsageError(
                f"--resume {folder}: there is no checkpoint of kungfu; give one, or a folder of them, or begin anew "
                "where there is none: --resume-if-any"
            )
        print(
            f"kungfu-run: --resume-if-any {folder}: no checkpoint is there yet; training begins anew", file=sys.stderr
        )
    asked, (keep, best_signal) = "" if folder is None else f"{option} {folder.absolute()}", _kept(given.keep)
    resume = "" if found is None else str(found)
    return CheckpointSettings(
        "", keep, resume, given.peers, resume_option=asked, best_signal=best_signal, restarts=given.restarts
    )


def _kept(text: str) -> tuple[int, str]:
    """The number of newest checkpoints to keep, and the signal whose lowest value makes a checkpoint the best.

    >>> _kept("5"), _kept("best"), _kept("2,best:val_loss")
    ((5, ''), (3, 'mean_loss'), (2, 'val_loss'))
    """
    match = re.fullmatch(r"(?:(?P<number>-?\d+)(?:,|$))?(?:(?P<best>best)(?::(?P<signal>[^,:]+))?)?", text)
    if not text or match is None or (match["number"] and text.endswith(",")):
        raise UsageError(
            f"--keep {text}: takes a number of checkpoints, best or best:SIGNAL for the one with the lowest value of a "
            "signal, or both, as in --keep 3,best:val_loss"
        )
    number = int(match["number"] or _KEEP)
    if not 1 <= number <= _MOST_KEPT:
        raise UsageError(f"--keep {number}: must be from 1 to {_MOST_KEPT} checkpoints")
    return number, (match["signal"] or "mean_loss") if match["best"] else ""


def _check_policies(specs: Sequence[str]) -> None:
    """Refuses policies that do not load or that contradict each other, before any process starts."""
    if specs:
        from kungfu.compiler import compile_policies
        from kungfu.policy_definition.policy_path import load_policies_of_job

        compile_policies(load_policies_of_job(specs), sync=None)  # the program says how it synchronises


def _spares(text: str, command: Sequence[str], *, maximum: int) -> SpareLimits:
    """The number of spares, and the stage at which they wait; "loaded" requires a Python script or module.

    >>> _spares("2", ["bash", "run.sh"], maximum=4), _spares("1:loaded", ["python", "train.py"], maximum=4)
    (SpareLimits(number=2, level='warm'), SpareLimits(number=1, level='loaded'))
    """
    from kungfu.runtime.agent.supervisor.loaded_process import can_load_only

    match = re.fullmatch(r"(\d+)(:loaded)?", text)
    if match is None or int(match[1]) > maximum:
        raise UsageError(
            f"--spares {text}: takes a number from 0 to --max, which is {maximum}, and perhaps `:loaded`, as in "
            "--spares 1:loaded"
        )
    limits = SpareLimits(int(match[1]), "loaded" if match[2] else "warm")
    if match[2] and limits.number and not can_load_only(command):
        raise UsageError(
            f"--spares {text} with {' '.join(command)}: takes `python` with a script, or with -m and a module, whose "
            "interpreter can load TensorFlow before it knows what to run; --spares without `:loaded` takes any program"
        )
    return limits


def _command(words: Sequence[str]) -> tuple[str, ...]:
    command = tuple(words[1:] if words and words[0] == "--" else words)
    if not command:
        raise UsageError("no program was given: kungfu-run -np 2 python train.py")
    if shutil.which(command[0]) is None:
        raise UsageError(f"cannot run {command[0]!r}: no such program; kungfu-run -np 2 python train.py")
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    # Python with -m or -c has no script to look for.
    takes_script = Path(command[0]).name.startswith("python") and not {"-m", "-c"} & set(command[1:])
    if takes_script and not Path(script).is_file():
        raise UsageError(f"cannot open {script!r}: no such script in {Path.cwd()}")
    return command


def _raise_descriptor_limit() -> None:
    """Raises the soft limit of descriptors for this process and its peers, since each connection needs a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _is_over(folder: Path, *, restarts: int) -> bool:
    """Locks the folder of the record; True if the folder holds a job that has trained to its end."""
    from kungfu.runtime.agent.restarts import is_over, lock_record

    doubt = lock_record(folder)
    if doubt and restarts:
        print(f"kungfu-run: {doubt}", file=sys.stderr)
    return restarts > 0 and is_over(folder)


def _run(given: argparse.Namespace) -> int:
    """Checks a command line before creating any file or process, then runs its job; returns the exit code."""
    maximum = given.peers if given.max is None else given.max
    _check_numbers(given, maximum=maximum)
    _check_policies(given.policy)
    hosting = read_hosting(
        given, size=given.peers, maximum=maximum, attachment=given.attachment, environment=os.environ
    )  # fmt: skip
    watched = exports.read_exports(given, hosting=hosting)
    command, settings = _command(given.command), _settings(given, hosting, maximum=maximum)
    spares = _spares(given.spares, command, maximum=maximum)
    check_compiler(with_ops=given.attachment == "local")
    folder = given.logdir or _new_folder(hosting, time.strftime("%Y%m%d-%H%M%S"))
    if _is_over(folder, restarts=given.restarts):
        print(f"kungfu-run: the job in {folder} is over: its training has ended", file=sys.stderr)
        return 0
    kept = (given.checkpoints or folder / "checkpoints").absolute()
    settings = replace(settings, checkpoints=replace(settings.checkpoints, folder=str(kept)))
    _raise_descriptor_limit()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC reads this on import; the import is below
    from kungfu.cli.console.run_console import make_console
    from kungfu.runtime.agent.agent import JobSpec, run_job
    from kungfu.runtime.agent.journal.journal import Journal

    journal = Journal(folder, trace_limit_bytes=round(given.trace_limit * 1e6), continues=given.restarts > 0)
    job = JobSpec(
        command, given.peers, settings, dict(os.environ), ReplacementLimits(given.failures, given.preemptions),
        given.scaling, hosting.hosts, hosting.index, spares, join=hosting.join, place=given.place or "pack",
        min_hosts=hosting.min_hosts, store=hosting.store,
    )  # fmt: skip
    with make_console(journal.folder) as console:
        with exports.exporting(watched, journal.folder, report=console.remark) as running:
            ending = run_job(job, journal=journal, console=console, listeners=running.listeners)
            journal.close()
            # A machine that is preempted may be gone 30 s after SIGTERM.
            running.is_preempted = (ending.leaves and not ending.failure) or ending.code == 128 + signal.SIGTERM
        console.ended(ending)
    return ending.code


if __name__ == "__main__":
    sys.exit(main())
