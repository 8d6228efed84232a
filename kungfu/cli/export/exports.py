"""The options of kungfu-run about other programs that watch a job, and what is opened for them while it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kungfu.cli.export.metrics_server import MetricsAddress, MetricsServer, parse_address
from kungfu.cli.export.tensorboard import TensorBoardProcess, check_installed
from kungfu.cli.hosting import Hosting

if TYPE_CHECKING:
    from kungfu.runtime.agent.record.recorder import RecordListener

__all__ = ["Exports", "add_arguments", "exporting", "read_exports"]


@dataclass(frozen=True)
class Exports:
    """What was asked for.

    Args:
        tensorboard: The folder in which TensorBoard gets a folder of this run.
        suffix: What this host adds to the name of that folder: each of several hosts writes its own.
        metrics: Where metrics are served for Prometheus.
    """

    tensorboard: Path | None = None
    suffix: str = ""
    metrics: MetricsAddress | None = None

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
        help="write curves and decisions for TensorBoard while the job runs, in a folder of this run within DIR",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-port", metavar="[ADDRESS:]PORT",
        help="serve /metrics for Prometheus while the job runs; 0 is any free port (ADDRESS 127.0.0.1)",
    )  # fmt: skip


def read_exports(given: argparse.Namespace, *, hosting: Hosting) -> Exports:
    """What a command line asks for; raises ``UsageError`` where that cannot be."""
    if given.tensorboard is not None:
        check_installed()
    metrics = None if given.metrics_port is None else parse_address(given.metrics_port)
    return Exports(given.tensorboard, "" if hosting.place == 0 else f"-{hosting.own.name}", metrics)


@contextmanager
def exporting(exports: Exports, record: Path, *, tell: Callable[[str], None]) -> Iterator[Sequence[RecordListener]]:
    """Opens what was asked for, and closes it after the block; gives what is to hear of what is recorded.

    Args:
        exports: What was asked for.
        record: The folder of the run's record.
        tell: Takes remarks for people: nothing of this can end a job.
    """
    listeners: list[RecordListener] = []
    with ExitStack() as opened:
        if (target := exports.tensorboard_run(record)) is not None:
            opened.enter_context(TensorBoardProcess(record, target, tell=tell))
        if exports.metrics is not None:
            from kungfu.cli.export.prometheus import PrometheusMetrics  # another one than jobs without metrics load

            metrics = PrometheusMetrics()
            opened.enter_context(MetricsServer(metrics.registry, exports.metrics, tell=tell))
            listeners.append(metrics)
        yield listeners
