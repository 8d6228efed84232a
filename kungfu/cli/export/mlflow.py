"""``kungfu-run --mlflow URI`` and ``kungfu mlflow``: write a run to MLflow, live or afterwards."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kungfu.cli.export.side_process import SideProcess
from kungfu.cli.run_folder import check_record
from kungfu.errors import UsageError

_WRITER = "kungfu.cli.export.mlflow_writer"
# Seconds after the end of a job in which to write the rest of its record.
_END_WITHIN_S = 30.0
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SCHEMES = ("http", "https", "file", *_DATABASES, "databricks", "databricks-uc", "uc")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/.*)?")


@dataclass(frozen=True)
class MlflowTarget:
    """The tracking server or store of MLflow for a job.

    Args:
        uri: The tracking URI.
        host: The index of this host. Of several hosts, only the one that leads the job writes; None for a recorded run.
        parameters: The parameters of the run that the record lacks.
    """

    uri: str
    host: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The URI without its password.

        >>> print(MlflowTarget("postgresql://me:secret@db/runs"), MlflowTarget("mlruns"))
        postgresql://me:***@db/runs mlruns
        """
        return re.sub(r"(//[^/:@]*):[^/@]*@", r"\1:***@", self.uri)


def parse_target(given: argparse.Namespace, *, host: int) -> MlflowTarget:
    """The target of a command line of kungfu-run; raises ``UsageError`` if nothing can be written there."""
    parameters = {
        "min_peers": str(given.min),
        "max_peers": str(given.peers if given.max is None else given.max),
        "policies": " ".join(given.policy),
    }
    return _checked(MlflowTarget(given.mlflow, host, parameters), option=f"--mlflow {given.mlflow}")


def _checked(target: MlflowTarget, *, option: str) -> MlflowTarget:
    """The target; raises ``UsageError`` if MLflow is not installed, or has no store for the URI."""
    if find_spec("mlflow") is None:
        raise UsageError(f"{option}: MLflow is not installed; `pip install 'kungfu-training[mlflow]'`")
    if why := _refusal(target.uri):
        raise UsageError(f"{option}: {why}")
    return target


def _refusal(uri: str) -> str:
    """The reason why MLflow has no store for a tracking URI; empty if there is a store.

    >>> [_refusal(uri) for uri in ("http://tracking:5000", "sqlite:///mlflow.db", "databricks", "mlruns")]
    ['', '', '', '']
    >>> print(*map(_refusal, ("tracking:5000", "http:tracking", "sqlite://mlflow.db", "ftp://tracking")), sep=chr(10))
    this is no URI; is http://tracking:5000 meant?
    this URI names no host, as in http://HOST:5000
    this URI names no file, as in sqlite:///mlflow.db
    MLflow has no store for 'ftp'; give http://HOST:5000 or sqlite:///FILE
    """
    parts, known = urlsplit(uri), {*_SCHEMES, *entry_points(group="mlflow.tracking_store").names}
    scheme = parts.scheme.partition("+")[0]
    if not uri.strip():
        return "an empty URI names no store; give http://HOST:5000 or sqlite:///FILE"
    if scheme not in known and _HOST_AND_PORT.fullmatch(uri):
        return f"this is no URI; is http://{uri} meant?"
    if scheme and scheme not in known:
        return f"MLflow has no store for {scheme!r}; give http://HOST:5000 or sqlite:///FILE"
    if scheme in ("http", "https") and not parts.netloc:
        return f"this URI names no host, as in {scheme}://HOST:5000"
    if scheme == "sqlite" and (parts.netloc or not parts.path.strip("/")):
        return "this URI names no file, as in sqlite:///mlflow.db"
    return ""


def mlflow_process(record: Path, target: MlflowTarget, *, report: Callable[[str], None]) -> SideProcess:
    """A side process that writes a run to MLflow while the run is being recorded; a context manager."""
    return SideProcess(
        "MLflow", _WRITER, (str(record.absolute()), msgspec.json.encode(target).decode()), subject=str(target),
        report=report, end_within_s=_END_WITHIN_S,
        late=f"the run was not written to its end within {_END_WITHIN_S:.0f} s; kungfu mlflow {record} {target} does",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line of ``kungfu mlflow``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder written by kungfu-run")
    parser.add_argument("uri", metavar="URI", help="the tracking server or store of MLflow, such as http://HOST:5000")


def run(given: argparse.Namespace) -> int:
    """Writes a recorded run to MLflow, or what its run there lacks; returns the exit code."""
    target = _checked(MlflowTarget(given.uri), option=given.uri)
    from kungfu.cli.export.mlflow_writer import export_record

    check_record(given.folder)

    def note(remark: str) -> None:
        print(f"note: {remark}", file=sys.stderr)

    return 0 if export_record(given.folder, target, is_over=lambda timeout_s: True, report=note) else 1
