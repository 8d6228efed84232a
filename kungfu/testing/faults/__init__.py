"""A schedule of faults for a real job: written down, or drawn at random, and carried out while the job trains."""

from kungfu.testing.faults.freezer import Freezer
from kungfu.testing.faults.inject import InjectedJob, Injection, InjectionLimits, inject
from kungfu.testing.faults.job_watcher import JobWatcher
from kungfu.testing.faults.random_faults import random_faults, random_host_faults, survivable_faults
from kungfu.testing.faults.run_faults import FaultDone, run_faults
from kungfu.testing.faults.schedule import (
    Fault,
    RequestCheckpoint,
    ResizeJob,
    SignalHosts,
    SignalPeers,
    SlowPeers,
    When,
    parse,
)

__all__ = [
    "Fault",
    "FaultDone",
    "Freezer",
    "InjectedJob",
    "Injection",
    "InjectionLimits",
    "JobWatcher",
    "RequestCheckpoint",
    "ResizeJob",
    "SignalHosts",
    "SignalPeers",
    "SlowPeers",
    "When",
    "inject",
    "parse",
    "random_faults",
    "random_host_faults",
    "run_faults",
    "survivable_faults",
]
