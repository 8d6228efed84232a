"""The options of kungfu-run about other programs that watch a job, and what is opened for them while it runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kungfu.cli.export.listen_address import ListenAddress, parse_address
from kungfu.cli.export.metrics_server import MetricsServer
from kungfu.cli.export.tensorboard import check_installed, tensorboard_process
from kungfu.cli.hosting import Hosting
from kungfu.cli.page.page_command import page_process

if TYPE_CHECKING:
    from kungfu.runtime.agent.record.recorder import RecordListener

_ADDRESS = re.compile(r"(\S*:)?\d+")


@dataclass(frozen=True)
class Exports:
    """The requested exports.

    Args:
        tensorboard: The folder in which TensorBoard gets a folder of this run.
        suffix: The addition of this host to the name of that folder: each of several hosts writes its own.
        metrics: The address of the metrics for Prometheus.
        page: The address of the page of the job.
    """

    tensorboard: Path | None = None
    suffix: str = ""
    metrics: ListenAddress | None = None
    page: ListenAddress | None = None

    def tensorboard_run(self, record: Path) -> Path | None:
        """The folder of this run in TensorBoard; it has the name of its record, and perhaps the host's."""
        name = record.resolve().name
        # Records that were named by kungfu-run have the host's name already.
        suffix = "" if name.endswith(self.suffix) else self.suffix
        return None if self.tensorboard is None else self.tensorboard / f"{name}{suffix}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Gives ``parser`` the options about other programs that watch a job."""
    parser.add_argument(
        "--tensorboard", type=Path, metavar="DIR",
        help="write curves and decisions for TensorBoard while the job runs, in a folder of this run below DIR",
    )  # fmt: skip
    parser.add_argument(
        "--page", nargs="?", const="0", metavar="[ADDRESS:]PORT",
        help="serve a web page of the job while it runs; 0 is any free port (ADDRESS 127.0.0.1, PORT 0)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-port", metavar="[ADDRESS:]PORT",
        help="serve /metrics for Prometheus while the job runs; 0 is any free port (ADDRESS 127.0.0.1)",
    )  # fmt: skip


def completed(words: Sequence[str], *, parser: argparse.ArgumentParser) -> list[str]:
    """A command line whose ``--page`` has a port: without one, argparse would take the program for it.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> completed(["--page", "python", "train.py", "--page", "2"], parser=parser)
    ['--page=0', 'python', 'train.py', '--page', '2']
    >>> completed(["--tensorboard", "--page", "--page", "8080", "python"], parser=parser)
    ['--tensorboard', '--page', '--page', '8080', 'python']
    """
    takes_value = {name for one in parser._actions if one.nargs is None for name in one.option_strings}
    done, place = list[str](), 0
    # Up to the program, whose own options are not ours.
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        value = words[place + 1 : place + 2]
        if words[place] == "--page" and not (value and _ADDRESS.fullmatch(value[0])):
            done, place = [*done, "--page=0"], place + 1
        else:
            count = 2 if words[place] in {*takes_value, "--page"} else 1
            done, place = [*done, *words[place : place + count]], place + count
    return [*done, *words[place:]]


def read_exports(given: argparse.Namespace, *, hosting: Hosting) -> Exports:
    """The exports requested on a command line; raises ``UsageError`` for those that are not possible."""
    if given.tensorboard is not None:
        check_installed()
    metrics, page = (
        None if text is None else parse_address(text, option=option, example=example)
        for option, text, example in (("--metrics-port", given.metrics_port, 9400), ("--page", given.page, 8080))
    )
    return Exports(given.tensorboard, "" if hosting.index == 0 else f"-{hosting.local.name}", metrics, page)


@contextmanager
def exporting(exports: Exports, record: Path, *, tell: Callable[[str], None]) -> Iterator[Sequence[RecordListener]]:
    """Opens what was requested, and closes it after the block; gives what is to hear of what is recorded.

    Args:
        exports: The requested exports.
        record: The folder of the run's record.
        tell: Takes remarks for people: nothing of this can end a job.
    """
    listeners: list[RecordListener] = []
    with ExitStack() as opened:
        if (target := exports.tensorboard_run(record)) is not None:
            opened.enter_context(tensorboard_process(record, target, tell=tell))
        if exports.page is not None:
            opened.enter_context(page_process(record, exports.page, tell=tell))
        if exports.metrics is not None:
            from kungfu.cli.export.prometheus import PrometheusMetrics  # another one than jobs without metrics load

            metrics = PrometheusMetrics()
            opened.enter_context(MetricsServer(metrics.registry, exports.metrics, tell=tell))
            listeners.append(metrics)
        yield listeners
