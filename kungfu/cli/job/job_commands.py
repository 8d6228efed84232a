"""The ``kungfu`` commands that query, change or stop a running job.

Commands: ``status``, ``resize``, ``scale-out``, ``scale-in``, ``migrate``, ``checkpoint``, ``profile``, ``stop``.
"""

from __future__ import annotations

import argparse
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from kungfu.cli.run_folder import add_job_folder, job_folder
from kungfu.errors import UsageError
from kungfu.runtime.core import request

_PROFILE_STEPS = 50
_TRACE_S = 5.0
# The positional arguments of these commands end with a folder and are parsed as words.
_WORDS = ("resize", "scale-in", "profile")
# The commands that change the membership, and preview their effects with --plan.
_PLANNED = ("resize", "scale-out", "scale-in", "migrate")
_EXITS = (
    "exit codes: 0 carried out, 1 refused by the job or not carried out in time, 2 wrong command line or no such job"
)


def add_arguments(parser: argparse.ArgumentParser, *, name: str) -> None:
    """Adds the arguments of the command ``name`` to ``parser``."""
    parser.epilog = _EXITS
    _add_own(parser, name)
    add, keep = parser.add_argument, get_args(request.Keep)
    if name in ("resize", "scale-out", "scale-in", "profile"):
        add("--keep", choices=keep, default="global_batch_size", help="the batch size to keep (%(default)s)")
    add_job_folder(parser, is_positional=name not in _WORDS)
    add("--json", dest="form", action="store_const", const="json", default="text", help="print JSON")
    if name == "status":
        return
    add("--id", metavar="ID", help="id of the request; a request with a known id is not carried out again (random)")
    add("--if-view", type=int, metavar="V", help="refuse the request unless the view has version V")
    if name in _PLANNED:
        add("--plan", action="store_true", help="print the effects and the cost of the request; change nothing")
    add("--timeout", type=float, default=600.0, metavar="S", help="longest wait for the request (600)")
    add("--no-wait", dest="timeout", action="store_const", const=0.0, help="submit the request without waiting for it")


def run(given: argparse.Namespace) -> int:
    """Runs the command of a command line; returns the exit code. Raises ``KungfuError`` if there is no such job."""
    from kungfu.cli.job.status import print_status
    from kungfu.cli.job.submit import submit_and_report

    if given.name == "resize":
        given.size, given.positional = _size_and_folder(given)
    if given.name == "scale-in":
        given.peers, given.positional = _peers_and_folder(given.words)
    if given.name == "profile":
        given.minimum, given.maximum, given.positional = _sizes_and_folder(given.words, traced=given.trace)
    folder = job_folder(given)
    if given.name == "status":
        return print_status(folder, form=given.form)
    if given.name == "profile" and given.trace:
        from kungfu.cli.job.trace import write_traces

        return write_traces(folder, seconds=given.seconds, peers=given.peers, target=given.to, form=given.form)
    asked = request.Asked(_REQUESTS[given.name](given), id=given.id or secrets.token_hex(4), if_view=given.if_view)
    if given.name in _PLANNED and given.plan:
        from kungfu.cli.job.plan_forecast import print_plan

        return print_plan(folder, asked, form=given.form)
    if given.name == "profile":
        from kungfu.cli.job.profile import run_profile

        return run_profile(folder, asked, timeout_s=given.timeout, form=given.form, target=given.to)
    return submit_and_report(folder, asked, timeout_s=given.timeout, form=given.form)


def _size_and_folder(given: argparse.Namespace) -> tuple[int | None, Path | None]:
    """Parses N, which is absent with --release, --min or --max, and an optional folder."""
    has_limits, words = given.least is not None or given.most is not None, given.words
    is_number = bool(words) and words[0].lstrip("-").isdecimal()
    if is_number + has_limits + given.release != 1 or (given.hold is not None and not is_number):
        raise UsageError(
            f"{' '.join(words)!r}: give N, perhaps with --hold, or --release, or --min and --max; then perhaps RUN"
        )
    if len(rest := words[is_number:]) > 1:
        raise UsageError(f"{' '.join(rest)!r}: give at most RUN after N")
    return int(words[0]) if is_number else None, Path(rest[0]) if rest else None


def _seconds(text: str) -> float:
    """Parses the seconds of a hold."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give RUN before --hold") from None


def _samples(text: str) -> int:
    """Parses a global batch of a profile."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of samples; give RUN before --batches") from None


def _peers_and_folder(words: Sequence[str]) -> tuple[tuple[int, ...], Path | None]:
    """Parses words as peer ids; the last word may be a folder instead."""
    peers, rest = [word for word in words if word.isdecimal()], [word for word in words if not word.isdecimal()]
    if not peers or len(rest) > 1 or (rest and words[-1] != rest[0]):
        raise UsageError(f"{' '.join(words)!r}: give the ids of peers, as kungfu status shows them, then perhaps RUN")
    return tuple(int(peer) for peer in peers), Path(rest[0]) if rest else None


def _sizes_and_folder(words: Sequence[str], *, traced: bool) -> tuple[int, int, Path | None]:
    """Parses MIN and MAX, which are absent for a trace, and an optional folder."""
    sizes, rest = ([], words) if traced else (words[:2], words[2:])
    if len(rest) > 1 or not (traced or (len(sizes) == 2 and all(word.isdecimal() for word in sizes))):
        expected = "with --trace nothing but RUN" if traced else "MIN MAX, two numbers of peers, then perhaps RUN"
        raise UsageError(f"{' '.join(words)!r}: give {expected}")
    least, most = map(int, sizes or (0, 0))
    return least, most, Path(rest[0]) if rest else None


def _add_own(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds those arguments of the command ``name`` that only some of the commands have."""
    add = parser.add_argument
    match name:
        case "resize":
            add("words", nargs="*", metavar="N [RUN]", help="the new number of peers; the job's folder")
            hold = "no policy may then change the size, for SECONDS or until --release; lost peers are replaced"
            add("--hold", nargs="?", const=math.inf, type=_seconds, metavar="SECONDS", help=hold)
            add("--release", action="store_true", help="end the hold, without changing the size")
            add("--min", dest="least", type=int, metavar="N", help="set the minimum number of peers, in place of N")
            add("--max", dest="most", type=int, metavar="N", help="set the maximum number of peers, in place of N")
        case "scale-out":
            add("words", metavar="N|HOST", help="the number of peers to add, or a host whose free slots get peers")
        case "scale-in":
            add("words", nargs="+", metavar="PEER", help="ids of the peers to remove, optionally followed by RUN")
        case "migrate":
            add("peer", type=int, metavar="PEER", help="the id of the peer to replace")
            add("host", metavar="HOST", help="the host of the new peer, which joins before the other leaves")
        case "profile":
            sizes = "the smallest and the largest size in peers; the job's folder"
            traces = "write traces of TensorFlow's profiler instead, in one folder per peer below --to"
            add("words", nargs="*", metavar="MIN MAX [RUN]", help=sizes)
            batches = "measure each size at each of these global batches, in samples (the batch of the job)"
            add("--batches", type=_samples, nargs="+", default=(), metavar="B", help=batches)
            steps = "measured steps per size and batch (%(default)s)"
            add("--steps", type=int, default=_PROFILE_STEPS, metavar="K", help=steps)
            add("--to", type=Path, metavar="STEM", help="write STEM.json and STEM.png (RUN/profile)")
            add("--trace", action="store_true", help=f"{traces} (RUN/trace/TIME)")
            add("--seconds", type=float, default=_TRACE_S, metavar="S", help="length of a trace (%(default)g)")
            add("--peers", type=int, nargs="+", metavar="PEER", help="ids of the peers to trace (all)")


def _resize(given: argparse.Namespace) -> request.Request:
    if given.release:
        return request.Release()
    if given.size is None:
        return request.SetLimits(given.least, given.most, given.keep)
    return request.Resize(given.size, given.keep, hold_s=given.hold)


def _scale_out(given: argparse.Namespace) -> request.Request:
    if given.words.lstrip("-").isdecimal():
        return request.ScaleOut(int(given.words), given.keep)
    return request.ScaleOut(0, given.keep, given.words)


_REQUESTS: Mapping[str, Callable[[argparse.Namespace], request.Request]] = {
    "resize": _resize,
    "scale-out": _scale_out,
    "scale-in": lambda given: request.Leave(given.peers, keep=given.keep),
    "migrate": lambda given: request.Migrate(given.peer, given.host),
    "checkpoint": lambda given: request.SaveCheckpoint(),
    "profile": lambda given: request.Profile(
        given.minimum, given.maximum, given.steps, given.keep, tuple(given.batches)
    ),
    "stop": lambda given: request.StopTraining(),
}
