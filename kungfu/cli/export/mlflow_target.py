"""The tracking server or store of MLflow that a command line names, checked before anything starts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from urllib.parse import urlsplit

from kungfu.errors import UsageError
from kungfu.extras import missing

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SCHEMES = ("http", "https", "file", *_DATABASES, "databricks", "databricks-uc", "uc")
# Up to the last @, since a password may contain @, / and ?; without a colon the name of the user is a token.
_CREDENTIALS = re.compile(r"^([^/]*//(?:[^/:@]*:)?)(?!/).*@")
_QUERY_SECRET = re.compile(r"([?&;]\w*(?:password|passwd|pwd|token|odbc_connect)=)[^&]*", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/.*)?")


@dataclass(frozen=True)
class MlflowTarget:
    """The tracking server or store of MLflow for a job.

    Args:
        host: The index of this host, or its name if it joins a job; None for a recorded run. Of several hosts, only the
            one that leads the job writes.
        parameters: The parameters of the run that the record lacks.
    """

    uri: str
    host: int | str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The URI without its passwords and tokens.

        >>> print(MlflowTarget("postgresql://me:secret@db/runs"), MlflowTarget("mlruns"))
        postgresql://me:***@db/runs mlruns
        >>> print(MlflowTarget("http://me:p@ss@host"), MlflowTarget("http://me:a/b?c@h"), MlflowTarget("https://TOKEN@h"))
        http://me:***@host http://me:***@h https://***@h
        >>> print(MlflowTarget("postgresql://h/db?user=me&password=secret&sslmode=require"))
        postgresql://h/db?user=me&password=***&sslmode=require
        >>> print(MlflowTarget("mssql+pyodbc:///?odbc_connect=PWD%3Dsecret"), MlflowTarget("sqlite:////a@b/mlflow.db"))
        mssql+pyodbc:///?odbc_connect=*** sqlite:////a@b/mlflow.db
        """
        return _QUERY_SECRET.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", self.uri))


def parse_target(given: argparse.Namespace, *, host: int | str) -> MlflowTarget:
    """The target of a command line of kungfu-run; raises ``UsageError`` if nothing can be written there."""
    parameters = {
        "min_peers": str(given.min),
        "max_peers": str(given.peers if given.max is None else given.max),
        "policies": " ".join(given.policy),
    }
    return checked(MlflowTarget(given.mlflow, host, parameters), option="--mlflow ")


def checked(target: MlflowTarget, *, option: str = "") -> MlflowTarget:
    """The target; raises ``UsageError`` if MLflow is not installed, or has no store for the URI."""
    if advice := missing("mlflow"):
        raise UsageError(f"{option}{target} {advice}")
    if why := _refusal(target.uri):
        raise UsageError(f"{option}{target}: {why}")
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
