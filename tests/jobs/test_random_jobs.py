"""Jobs under faults drawn at random, on one host and on three; ``make soak`` runs many of them.

``KUNGFU_SOAK_JOBS`` is JOBS,SEED: so many jobs, whose schedules are drawn with the seeds from SEED on. Two of three run
on one host with four faults each, the others on three hosts with three. Whatever happens to a job, it ends with 0 and
with the state, the counts and the registered values of a run that nothing happened to.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kungfu.testing.faults import Fault, SignalHosts
from tests.jobs.convex_runs import NO_QUORUM_CODE, faulted, training
from tests.jobs.random_faults import random_faults, random_host_faults

pytestmark = pytest.mark.timeout(900)

HOSTS = 3
JOBS, SEED = (int(word) for word in os.environ.get("KUNGFU_SOAK_JOBS", "0,1").split(","))
SOAK = pytest.mark.skipif(not JOBS, reason="make soak runs it")
ON_HOSTS = [seed for seed in range(SEED, SEED + JOBS) if seed % 3 == 0]
ON_ONE = [seed for seed in range(SEED, SEED + JOBS) if seed % 3]


@SOAK
@pytest.mark.parametrize("seed", ON_ONE)
def test_a_job_on_one_host(tmp_path: Path, seed: int) -> None:
    faults = random_faults(seed, changes=4, kills=2, size=2)
    print(f"seed {seed}:", *faults, sep="\n  ")
    options = ("--failures", 1000, "--heartbeat", 5, "--deadline", 30)
    faulted(tmp_path, faults, *options, size=2, epochs=60, deadline_s=240)


@SOAK
@pytest.mark.parametrize("seed", ON_HOSTS)
def test_a_job_on_three_hosts(tmp_path: Path, seed: int) -> None:
    faults = random_host_faults(seed, faults=3, hosts=HOSTS)
    print(f"seed {seed}:", *faults, sep="\n  ")
    codes = codes_after(faults)
    with training(tmp_path, slots=(1, 1, 2), size=HOSTS, epochs=60) as run:
        run.run_faults(faults)
        run.ends(*codes, tells=next(host for host, code in enumerate(codes) if code == 0 and not is_hit(faults, host)))


def is_hit(faults: list[Fault], host: int) -> bool:
    """Whether a fault hits kungfu-run on this host."""
    return any(isinstance(one.what, SignalHosts) and host in one.what.hosts for one in faults)


def codes_after(faults: list[Fault]) -> list[int]:
    """How kungfu-run ends on each host: one that is woken after the others went on without it says so."""
    codes = [0] * HOSTS
    for fault in faults:
        if isinstance(fault.what, SignalHosts):
            codes[fault.what.hosts[0]] = {"kill": -signal.SIGKILL, "notice": 0}.get(fault.what.verb, NO_QUORUM_CODE)
    return codes
