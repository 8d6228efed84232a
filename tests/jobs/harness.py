"""Whole jobs through kungfu-run, on one host and on several: awaited with a deadline, and nothing may be left."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.emulation.jobs import free_port
from benchmarks.emulation.network import Network, NetworkHost, NetworkUnavailableError, network
from kungfu.cli.hosting import SECRET_KEY
from kungfu.cli.main import main
from tests.jobs import fork_server
from tests.jobs.fork_server import ONE_THREAD_EACH, ROOT

PROGRAMS = Path(__file__).parent / "programs"
TWO_DEVICES = ROOT / "tests" / "two_devices.py"  # a program that runs a program
LEAN = PROGRAMS / "lean"  # programs of users start as they do with a user
LOOK_S = 0.05  # a look reads the whole record
REPORT_S = 0.25  # tests wait for steps
REMAINS_S = 60.0  # of a job that has ended; other jobs may come and go on this machine meanwhile
QUICKLY_S = 45.0  # on a machine that stands still now and then; the waits of a job itself are of 60 s


@dataclass(frozen=True)
class Ended:
    """A job that is over."""

    code: int
    output: str
    folder: Path
    seconds: float

    @property
    def events(self) -> list[dict[str, Any]]:
        return lines_of(self.folder / "events.jsonl")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return lines_of(self.folder / "metrics.jsonl")

    def all_of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def sizes(self) -> list[int]:
        """The size of every view that trained, in order."""
        return [len(event["peers"]) for event in self.all_of("view")]


@dataclass(frozen=True)
class Job:
    """A job that runs. ``folder`` is its record, ``console`` what kungfu-run prints."""

    process: subprocess.Popen[bytes]
    folder: Path
    console: Path
    started: float

    def event(self, kind: str, *, deadline_s: float = 180.0, **fields: Any) -> dict[str, Any]:
        """The first event of a kind that has these fields; waits for it."""

        def find() -> dict[str, Any] | None:
            wanted = {"event": kind, **fields}.items()
            found = lines_of(self.folder / "events.jsonl")
            return next((event for event in found if all(event.get(name) == value for name, value in wanted)), None)

        return self.seen(find, what=f"event {kind} {fields}", deadline_s=deadline_s)

    def steps(self, count: int, *, deadline_s: float = 180.0) -> None:
        """Waits until so many steps are in the record."""
        path = self.folder / "metrics.jsonl"
        self.seen(lambda: len(lines_of(path)) >= count, what=f"{count} steps", deadline_s=deadline_s)

    def seen(self, look: Callable[[], Any], *, what: str, deadline_s: float) -> Any:
        """What ``look`` gives once it is true; an error if the job ends before."""

        def once() -> Any:
            over = self.process.poll() is not None
            found = look()
            assert found or not over, f"the job ended before {what}:\n{self.console.read_text()}"
            return found

        return awaited(once, what=what, deadline_s=deadline_s)

    def signal(self, number: int, *, peer: int | None = None) -> None:
        """Sends a signal to kungfu-run itself, as ``kill`` does, or to a peer."""
        os.kill(self.process.pid if peer is None else self.event("spawned", peer=peer)["pid"], number)

    def end(self, *, code: int | None = 0, deadline_s: float = 180.0) -> Ended:
        """How the job ended; an error if it has not within the deadline, or with another code than a given one."""
        awaited(lambda: self.process.poll() is not None, what="the end of the job", deadline_s=deadline_s)
        output = self.console.read_text(errors="replace")
        assert code in (None, self.process.returncode), f"it ended with {self.process.returncode}:\n{output}"
        return Ended(self.process.returncode, output, self.folder, time.monotonic() - self.started)


def launched(
    tmp_path: Path,
    *options: object,
    program: str | Path,
    arguments: Sequence[object] = (),
    name: str = "log",
    environment: Mapping[str, str] | None = None,
    executed: bool = False,
    host: NetworkHost | None = None,
) -> Job:
    """kungfu-run with a program (a name in ``programs`` or a path), its record in ``tmp_path / name``; see ``cleared``.

    ``options`` are those of kungfu-run; ``environment`` is added to that of this process. The peers of a program of
    this repository are forked from a process that has loaded TensorFlow, unless they are to be ``executed``. All run on
    this ``host`` of an emulated network, if one is given.
    """
    script = Path(program) if os.sep in str(program) else PROGRAMS / program
    logdir, console = tmp_path / name, tmp_path / f"console-{name}.txt"
    # Whatever a test looks at, what peers must hold alike is compared every few steps.
    watched = ["--logdir", logdir, "--report-every", REPORT_S, "--compare-every", 3]
    is_forked = ROOT in script.parents and not executed
    forked = {fork_server.ADDRESS_KEY: fork_server.address()} if is_forked else {}
    run = ["tests.jobs.fork_server", "run"] if forked else ["kungfu.cli.run"]
    line = [str(word) for word in (sys.executable, "-m", *run, *watched, *options, sys.executable, script, *arguments)]
    paths = os.pathsep.join(map(str, (ROOT, *([LEAN] if PROGRAMS in script.parents else []))))
    with console.open("wb") as output:
        process = subprocess.Popen(
            line if host is None else host.command(line, folder=tmp_path),
            cwd=tmp_path,
            env={**os.environ, **ONE_THREAD_EACH, "PYTHONPATH": paths, **forked, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Job(process, logdir, console, time.monotonic())


@contextmanager
def cleared(jobs: Sequence[Job]) -> Iterator[None]:
    """After the block nothing of ``jobs`` may be left: what is still alive is ended by its id, and is an error."""
    try:
        yield
    finally:
        alive = [job for job in jobs if job.process.poll() is None]
        for job in alive:
            job.signal(signal.SIGKILL)
        for job in jobs:
            job.process.wait()
    for job in jobs:
        for left in (partial(processes_of, job), partial(remains, job)):
            awaited(lambda left=left: not left(), what=lambda left=left: f"the end of {left()}", deadline_s=REMAINS_S)
    said = "\n".join(job.console.read_text(errors="replace") for job in alive)
    assert not alive, f"the job was still running:\n{said}"


@contextmanager
def started(tmp_path: Path, *options: object, **given: Any) -> Iterator[Job]:
    """A running job on one host, as ``launched`` makes it; nothing of it may be left afterwards."""
    job = launched(tmp_path, *options, **given)
    with cleared([job]):
        yield job


def ran(tmp_path: Path, *options: object, code: int = 0, deadline_s: float = 180.0, **given: Any) -> Ended:
    """A job from its start to its end, with this code."""
    with started(tmp_path, *options, **given) as job:
        return job.end(code=code, deadline_s=deadline_s)


@contextmanager
def networked(size: int) -> Iterator[Network]:
    """An emulated network of hosts, of which no process and so no namespace may be left afterwards.

    The test is skipped, with the reason, on a machine that does not permit one.
    """
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network(size))
        except NetworkUnavailableError as error:
            pytest.skip(f"no emulated network on this machine: {error}")
        spaces = {namespace_of(holder) for holder in (made.switch, *(host.holder for host in made.hosts))}
        yield made
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    assert not [pid for pid in pids if namespace_of(pid) in spaces], "processes in the namespaces of the network"


def namespace_of(pid: int) -> str:
    """The name of the network namespace of a process; "" once the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


@dataclass(frozen=True)
class Hosts:
    """What runs on each host, in the order of the list; ``launch`` starts it on one, with a name for its record."""

    jobs: list[Job]
    launch: Callable[[int, str], Job]
    joiner: Callable[..., Job]

    def __getitem__(self, host: int) -> Job:
        return self.jobs[host]

    @property
    def folders(self) -> list[Path]:
        return [job.folder for job in self.jobs]

    def back(self, host: int) -> Job:
        """Starts the same line again on a host on which it has ended."""
        self.jobs.append(self.launch(host, f"host-{host}-again-{len(self.jobs)}"))
        return self.jobs[-1]

    def join(self, host: int, slots: int, *options: object, name: str = "", **given: object) -> Job:
        """Starts another host, 127.0.0.``host`` or node-``host``, that no list names; the last of two equal ``options``
        counts."""
        self.jobs.append(self.joiner(host, slots, *options, name=name or f"joiner-{host}", **given))
        return self.jobs[-1]

    def ends(self) -> list[Ended]:
        """The end of each host, those last that came back; an error if one has not within the deadline."""
        return [job.end(code=None) for job in self.jobs]


@contextmanager
def started_on_hosts(
    tmp_path: Path, *options: object, slots: Sequence[int], within: Network | None = None, listed: bool = True,
    **given: Any,
) -> Iterator[Hosts]:  # fmt: skip
    """A running job on as many hosts as ``slots`` has entries: those of a network, or 127.0.0.1, ...

    Nothing of it may be left afterwards. The record of host N is in ``tmp_path / "host-N"``; ``options`` and ``given``
    are those of every one. Hosts that are not ``listed`` have the same line whether they found the job or join it.
    """
    members = [None] * len(slots) if within is None else within.hosts[: len(slots)]
    names = [f"127.0.0.{host + 1}" if member is None else member.name for host, member in enumerate(members)]
    places = [f"{name}:{room}" for name, room in zip(names, slots, strict=True)]
    port, shared = free_port(names) if within is None else 28100, {SECRET_KEY: secrets.token_hex(32)}

    def launch(host: int, name: str) -> Job:
        itself = ["--self", names[host]] if within is None else []  # a host of a network knows its name
        where = ["-H", ",".join(places), *itself] if listed else ["--self", places[host]]
        line: list[Any] = [*where, "--port", port, *options]
        return launched(tmp_path, *line, name=name, environment=shared, host=members[host], **given)

    def joiner(host: int, room: int, *more: object, name: str, **other: Any) -> Job:
        member = None if within is None else within.hosts[host - 1]
        itself = f"127.0.0.{host}" if member is None else member.name
        join = ["--join", f"{names[-1]}:{port}"] if listed else []
        line: list[Any] = [*join, "--self", f"{itself}:{room}", "--port", port, *options, *more]
        settings = {**given, "host": member, **other, "environment": {**shared, **other.get("environment", {})}}
        return launched(tmp_path, *line, name=name, **settings)

    jobs: list[Job] = []
    with cleared(jobs):
        jobs += [launch(host, f"host-{host}") for host in range(len(names))]
        yield Hosts(jobs, launch, joiner)


def job_results(
    program: str, tmp_path: Path, *options: object, devices: int = 1, **given: object
) -> tuple[Ended, dict[int, dict[str, Any]]]:
    """The job of a program with options, which ends well, and what each peer has left as its results."""
    words: list[object] = ["--results", tmp_path / "results"]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", value if isinstance(value, int | str) else json.dumps(value)]
    line = [*([TWO_DEVICES] if devices == 2 else []), PROGRAMS / program, *words]
    ended = ran(tmp_path, *options, program=line[0], arguments=line[1:], deadline_s=280.0)
    return ended, left_in(tmp_path / "results")


def left_in(folder: Path) -> dict[int, Any]:
    """What peers have left in a folder as PEER.json, by their ids."""
    return {int(path.stem): json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))}


def endless(tmp_path: Path) -> list[object]:
    """What makes ``network.py`` train until it is stopped, and leave the machine to what a test waits for."""
    return ["--results", tmp_path / "results", "--epochs", 1_000_000, "--samples", 48, "--pause-s", 0.04]


def asked(folder: Path, capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    """The answer of a command to a job, in JSON; an error if it ends with another code."""
    capsys.readouterr()
    assert main([*map(str, words), "--logdir", str(folder), "--json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def page_address(job: Job) -> str:
    """Where the page of a job is, as kungfu-run prints it."""
    found = job.seen(
        lambda: re.search(r"page: (http://\S+/)", job.console.read_text()), what="its address", deadline_s=60.0
    )
    return str(found[1])


def awaited(look: Callable[[], Any], *, what: str | Callable[[], str], deadline_s: float) -> Any:
    """What ``look`` gives once it is true; an error that names it if it is not within the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (found := look()):
        name = what if isinstance(what, str) else what()
        assert time.monotonic() < deadline, f"waited {deadline_s:g} s for {name}"
        time.sleep(LOOK_S)
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, without a last line that is still being written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def processes_of(job: Job) -> list[str]:
    """Every process in the session of kungfu-run or of a peer, whoever its parent is now."""
    sessions = {job.process.pid} | {event["pid"] for event in lines_of(job.folder / "events.jsonl") if "pid" in event}
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # it ended while we looked
    return found


def remains(job: Job) -> set[str]:
    """What a job could leave behind on the machine: shared memory that has a name, and listening sockets."""
    names = [event["job"] for event in lines_of(job.folder / "events.jsonl") if event["event"] == "started"]
    words = Path("/proc/net/unix").read_text().split()
    sockets = {word for word in words for name in names if word.startswith(f"@kungfu-{name}-")}
    return sockets | {f"/dev/shm/{entry.name}" for entry in Path("/dev/shm").iterdir() if "kungfu" in entry.name}
