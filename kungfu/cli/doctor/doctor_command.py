"""``kungfu doctor``: checks this machine, and other hosts on which the command runs at the same time."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from rich.console import Console

from kungfu import __version__
from kungfu.cli.doctor.finding import Finding, print_findings
from kungfu.cli.doctor.hosts import HostFacts, check_job, compared, exchange
from kungfu.cli.doctor.machine import check_machine
from kungfu.cli.doctor.probe import probe
from kungfu.cli.doctor.software import check_software, installed_libraries, supported_versions
from kungfu.cli.doctor.store import check_store
from kungfu.cli.hosting import Hosting, read_hosting
from kungfu.cli.hosting import add_arguments as add_hosting_arguments
from kungfu.errors import UsageError
from kungfu.runtime.agent.supervisor.launch import count_gpus
from kungfu.runtime.agent.supervisor.slots import devices_of
from kungfu.runtime.hosts import on_one_machine, parse_hosts, parse_store
from kungfu.runtime.settings import AttachmentName

_LONGEST_WAIT_S = 3600.0
_PROBED_WITHIN_S = 600.0
_PROBING = "loading TensorFlow and kungfu's op; its first use compiles it, which takes a minute or so"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to ``parser``."""
    parser.epilog = "exit codes: 0 no problem, 1 there is a problem, 2 the command line is wrong"
    add = parser.add_argument
    add("-np", "--peers", type=int, default=2, metavar="N", help="peers on this machine if -H is not given (2)")
    add("--attachment", choices=("local", "horovod"), help="the all-reduce of the job (horovod between machines)")
    add("--wait", type=float, default=30.0, metavar="S", help="longest wait for hosts that run the same command (30)")
    add("--json", dest="form", action="store_const", const="json", default="text", help="print JSON")
    add_hosting_arguments(parser)


def run(given: argparse.Namespace) -> int:
    """Runs all checks and prints the findings.

    Returns:
        0 if there is no problem, else 1.

    Raises:
        UsageError: The command line is contradictory, or names hosts that cannot form a job.
    """
    if given.peers < 1:
        raise UsageError(f"-np {given.peers}: must be at least one peer")
    if not 0 <= given.wait <= _LONGEST_WAIT_S:
        raise UsageError(f"--wait {given.wait:g}: must be from 0 to {_LONGEST_WAIT_S:g} seconds")
    attachment = given.attachment or _usual_attachment(given)
    store, job = given.store, given.job
    # A store is checked without hosts, too, and without the name of a job.
    if store is not None:
        given = argparse.Namespace(**{**vars(given), "store": None, "job": None})
        address = parse_store(store, "none" if job is None else job)
    hosting = read_hosting(given, size=1, maximum=1, attachment=attachment, environment=os.environ)
    slots = hosting.local.slots if hosting.local.port else given.peers
    libraries = installed_libraries()
    # A spinner shows on a terminal that checks are under way.
    with Console(stderr=True).status(_PROBING):
        found = probe(deadline_s=_PROBED_WITHIN_S)
    findings = [
        *check_software(
            found,
            attachment=attachment,
            libraries=libraries,
            supported=supported_versions(),
            devices=devices_of(os.environ, gpus=count_gpus()),
        ),
        *check_machine(slots=slots, attachment=attachment),
        *_others(hosting, libraries, wait_s=given.wait),
        *(() if store is None else check_store(address, names_job=job is not None)),
    ]
    if given.form == "json":
        print(json.dumps([asdict(one) for one in findings], indent=2))
    else:
        print_findings(findings)
    return int(any(one.severity == "problem" for one in findings))


def _usual_attachment(given: argparse.Namespace) -> AttachmentName:
    """The usual attachment: shared memory for one machine, Horovod for several machines."""
    listed = given.hosts if given.join is None else given.own_name
    if listed is None:
        return "local"
    hosts = parse_hosts(listed, port=given.port or 1)
    return "local" if (len(hosts) == 1 and given.join is None) or on_one_machine(hosts) else "horovod"


def _others(hosting: Hosting, libraries: dict[str, str], *, wait_s: float) -> list[Finding]:
    if len(hosting.hosts) == 1:
        return list(check_job(hosting.join, secret=hosting.secret))
    own = HostFacts({"Python": sys.version.split()[0], "kungfu": __version__, **libraries})
    answers = exchange(hosting.hosts, hosting.index, own, secret=hosting.secret, wait_s=wait_s)
    return list(compared(hosting.hosts, own, answers))
