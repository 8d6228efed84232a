"""The options of kungfu-run for exports to other programs, and the exports of a running job."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kungfu.cli.export.event_command import (
    ALL,
    USUAL_KINDS,
    EventCommand,
    event_command_process,
    parse_event_command,
)
from kungfu.cli.export.listen_address import ListenAddress, parse_address
from kungfu.cli.export.metrics_server import MetricsServer
from kungfu.cli.export.mlflow import mlflow_process
from kungfu.cli.export.mlflow_target import MlflowTarget, parse_target
from kungfu.cli.export.side_process import SideProcess
from kungfu.cli.export.tensorboard import tensorboard_process
from kungfu.cli.hosting import Hosting
from kungfu.cli.page.page_command import page_process
from kungfu.errors import UsageError
from kungfu.extras import missing

if TYPE_CHECKING:
    from kungfu.runtime.agent.journal.recorder import RecordListener

_ADDRESS = re.compile(r"(\S*:)?\d+")


@dataclass(frozen=True)
class Exports:
    """The requested exports.

    Args:
        tensorboard: The folder of TensorBoard; this run is written to a folder within that folder.
        suffix: The suffix of the run's folder for this host, since each of several hosts writes a separate folder.
    """

    tensorboard: Path | None = None
    suffix: str = ""
    metrics: ListenAddress | None = None
    page: ListenAddress | None = None
    on_event: EventCommand | None = None
    mlflow: MlflowTarget | None = None

    def tensorboard_run(self, record: Path) -> Path | None:
        """The run's folder for TensorBoard, with the record's name and the host's suffix; ``None`` if not requested."""
        name = record.resolve().name
        # Records that kungfu-run has named already end with the host's suffix.
        suffix = "" if name.endswith(self.suffix) else self.suffix
        return None if self.tensorboard is None else self.tensorboard / f"{name}{suffix}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for exports to ``parser``."""
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
    parser.add_argument(
        "--mlflow", metavar="URI",
        help="write parameters, metrics and decisions of the job to a run of MLflow, such as http://HOST:5000",
    )  # fmt: skip
    parser.add_argument(
        "--on-event", metavar="COMMAND",
        help="run a shell command for each event of the job, with the event's line of JSON as its standard input",
    )  # fmt: skip
    parser.add_argument(
        "--on-event-kinds",
        metavar="KIND,...",
        help=f"kinds of events that run the command of --on-event; {ALL} selects all ({','.join(USUAL_KINDS)})",
    )


def completed(words: Sequence[str], *, parser: argparse.ArgumentParser) -> list[str]:
    """Adds a port to a bare ``--page`` in a command line, since argparse would read the program as the port.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> completed(["--page", "python", "train.py", "--page", "2"], parser=parser)
    ['--page=0', 'python', 'train.py', '--page', '2']
    >>> completed(["--tensorboard", "--page", "--page", "8080", "python"], parser=parser)
    ['--tensorboard', '--page', '--page', '8080', 'python']
    """
    takes_value = {name for one in parser._actions if one.nargs is None for name in one.option_strings}
    done, left = list[str](), [*words]
    # Only up to the program, whose options must stay unchanged.
    while left and left[0].startswith("-") and left[0] != "--":
        if left[0] == "--page" and not _ADDRESS.fullmatch(left[1] if len(left) > 1 else ""):
            left[0] = "--page=0"
        count = 2 if left[0] in {*takes_value, "--page"} else 1
        done, left = [*done, *left[:count]], left[count:]
    return [*done, *left]


def read_exports(given: argparse.Namespace, *, hosting: Hosting) -> Exports:
    """The exports requested on a command line; raises ``UsageError`` if an export is not possible."""
    for option, value, extra in (
        ("--tensorboard", given.tensorboard, "tensorboard"),
        ("--metrics-port", given.metrics_port, "metrics"),
        ("--page", given.page, "page"),
        ("--mlflow", given.mlflow, "mlflow"),
    ):
        if value is not None and (advice := missing(extra)):
            raise UsageError(f"{option} {advice}")
    metrics, page = (
        None if text is None else parse_address(text, option=option, example=example)
        for option, text, example in (("--metrics-port", given.metrics_port, 9400), ("--page", given.page, 8080))
    )
    on_event = parse_event_command(given.on_event, given.on_event_kinds, host=hosting.shown)
    mlflow = None if given.mlflow is None else parse_target(given, host=hosting.shown)
    suffix = "" if hosting.shown == 0 else f"-{hosting.local.name}"
    return Exports(given.tensorboard, suffix, metrics, page, on_event, mlflow)


@dataclass
class RunningExports:
    """The exports of a running job.

    Args:
        is_preempted: Set to True at the end of the job if this machine may soon be gone: no scrape is then awaited.
    """

    listeners: list[RecordListener] = field(default_factory=list)
    is_preempted: bool = False


@contextmanager
def exporting(exports: Exports, record: Path, *, report: Callable[[str], None]) -> Iterator[RunningExports]:
    """Starts the exports, yields them, and ends them; no failure ends the job."""
    running, processes = RunningExports(), list[SideProcess]()
    with ExitStack() as opened:
        if (target := exports.tensorboard_run(record)) is not None:
            processes.append(tensorboard_process(record, target, report=report))
        if exports.mlflow is not None:
            processes.append(mlflow_process(record, exports.mlflow, report=report))
        if exports.on_event is not None:
            processes.append(event_command_process(record, exports.on_event, report=report))
        if exports.page is not None:
            processes.append(page_process(record, exports.page, report=report))
        for process in processes:
            opened.enter_context(process)
        if exports.metrics is not None:
            from kungfu.cli.export.prometheus import PrometheusMetrics  # not loaded without metrics

            metrics = PrometheusMetrics()
            server = MetricsServer(
                metrics.registry, exports.metrics, report=report, is_preempted=lambda: running.is_preempted
            )
            opened.enter_context(server)
            running.listeners.append(metrics)
        # All are told of the end before any of them, or a last scrape, is waited for.
        for process in processes:
            opened.callback(process.tell_end)
        yield running
