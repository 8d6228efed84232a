"""Runs of ``programs/convex.py`` under a schedule of faults, on one host and on several, with all that must hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kungfu.testing.faults import Fault, parse
from tests.jobs.harness import Ended, started
from tests.jobs.on_hosts import Hosts, started_on_hosts
from tests.jobs.regression import BATCH, SAMPLES, same_as_undisturbed
from tests.jobs.run_faults import run_faults

NO_QUORUM_CODE = 4  # the exit code of a host that has no quorum
MOST = 4
OPTIONS = ("--heartbeat", 4, "--deadline", 20, "--failures", 100)


@dataclass(frozen=True)
class Faulted:
    """A job to its end through faults: the peers that each ``hit``, and what its last peers wrote down, by id."""

    ended: Ended
    hit: list[tuple[int, ...]]
    found: dict[int, dict[str, Any]]


def faulted(
    tmp_path: Path,
    faults: Sequence[Fault],
    *options: object,
    size: int,
    epochs: int,
    arguments: Sequence[object] = (),
    marks: Sequence[str] = (),
    deadline_s: float = 240.0,
) -> Faulted:
    """A job on which faults are carried out, and which then trains to its end in a hurry; with all that must hold."""
    results = tmp_path / "results"
    results.mkdir()
    for mark in marks:
        (results / mark).touch()

    def resize(size: int) -> None:
        (results / "size.new").write_text(str(size))
        (results / "size.new").replace(results / "size")

    words = ["--results", results, "--epochs", epochs, "--samples", SAMPLES, "--batch-size", BATCH, *arguments]
    with started(tmp_path, "-np", size, "--max", MOST, *options, program="convex.py", arguments=words) as job:
        over = lambda: job.process.poll() is not None  # noqa: E731 - two words that need the job
        hit = run_faults(faults, [job.folder], size=size, resize=resize, over=over, deadline_s=deadline_s)
        (results / "hurry").touch()
        ended = job.end(deadline_s=180)
    found = {int(path.stem): json.loads(path.read_text()) for path in results.glob("*.json")}
    same_as_undisturbed(ended, found, epochs=epochs)
    return Faulted(ended, hit, found)


@dataclass(frozen=True)
class Run:
    """A job of ``programs/convex.py`` that runs."""

    hosts: Hosts
    results: Path
    epochs: int
    size: int

    def faults(self, text: str, *, size: int | None = None) -> None:
        """Carries a written schedule of faults out; see ``run_faults``."""
        self.run_faults(parse(text), size=size)

    def run_faults(self, faults: Sequence[Fault], *, size: int | None = None) -> None:
        """Carries faults out, and waits until the job has settled, with ``size`` peers (or as before)."""
        run_faults(faults, self.hosts.folders, size=size or self.size, resize=self.resize, over=self.hosts.over)

    def resize(self, size: int) -> None:
        """The program asks for this size by itself."""
        (self.results / "size.new").write_text(str(size))
        (self.results / "size.new").replace(self.results / "size")

    def ends(self, *codes: int, tells: int = 0) -> list[Ended]:
        """Has it train to its end; all hosts end with these codes, and host ``tells`` tells the whole story."""
        (self.results / "hurry").touch()
        ended = self.hosts.ends()
        assert [one.code for one in ended] == [*codes], "\n".join(one.output for one in ended)
        found = {int(path.stem): json.loads(path.read_text()) for path in self.results.glob("*.json")}
        same_as_undisturbed(ended[tells], found, epochs=self.epochs)
        return ended


@contextmanager
def training(
    tmp_path: Path, *options: object, slots: Sequence[int], size: int, epochs: int = 40, most: int | None = None
) -> Iterator[Run]:
    """A job of ``size`` peers, and of ``most`` at most, that goes on until it is told to hurry."""
    results = tmp_path / "results"
    results.mkdir()
    words = ["--results", results, "--epochs", epochs, "--samples", SAMPLES, "--batch-size", BATCH]
    line = ["-np", size, "--max", most or size, *OPTIONS, *options]
    with started_on_hosts(tmp_path, *line, slots=slots, program="convex.py", arguments=words) as hosts:
        yield Run(hosts, results, epochs, size)
