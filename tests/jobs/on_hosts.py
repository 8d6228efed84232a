"""A job on several hosts, all of them loopback addresses of this machine: kungfu-run on each, with its own folder."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.emulation.jobs import free_port
from kungfu.cli.hosting import SECRET_KEY
from tests.jobs.harness import Ended, Job, cleared, launched


@dataclass(frozen=True)
class Hosts:
    """What runs on each host, in the order of the list; ``launch`` starts it on one, with a name for its record."""

    jobs: list[Job]
    launch: Callable[[int, str], Job]

    def __getitem__(self, host: int) -> Job:
        return self.jobs[host]

    @property
    def folders(self) -> list[Path]:
        return [job.folder for job in self.jobs]

    def over(self) -> bool:
        """Whether nothing of the job runs any more."""
        return all(job.process.poll() is not None for job in self.jobs)

    def back(self, host: int) -> None:
        """Starts the same line again on a host on which it has ended."""
        self.jobs.append(self.launch(host, f"host-{host}-again"))

    def ends(self) -> list[Ended]:
        """The end of each host, those last that came back; an error if one has not within the deadline."""
        return [job.end(code=None) for job in self.jobs]


def names(count: int) -> list[str]:
    """127.0.0.1, 127.0.0.2, ...: all are this machine, and hosts to the job."""
    return [f"127.0.0.{host + 1}" for host in range(count)]


@contextmanager
def started_on_hosts(tmp_path: Path, *options: object, slots: Sequence[int], **given: Any) -> Iterator[Hosts]:
    """A running job on as many hosts as ``slots`` has entries; nothing of it may be left afterwards.

    The record of host N is in ``tmp_path / "host-N"``; ``options`` and ``given`` are those of every one.
    """
    here = names(len(slots))
    listed = ",".join(f"{name}:{room}" for name, room in zip(here, slots, strict=True))
    port, shared = free_port(here), {SECRET_KEY: secrets.token_hex(32)}

    def launch(host: int, name: str) -> Job:
        line: list[Any] = ["-H", listed, "--self", here[host], "--port", port, *options]
        return launched(tmp_path, *line, name=name, environment=shared, **given)

    jobs: list[Job] = []
    with cleared(jobs):
        jobs += [launch(host, f"host-{host}") for host in range(len(here))]
        yield Hosts(jobs, launch)
