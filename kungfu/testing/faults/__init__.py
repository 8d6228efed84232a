"""A schedule of faults for a real job: written down, or drawn at random, and carried out while the job trains."""

from kungfu.testing.faults.job_view import JobView, JobWatcher
from kungfu.testing.faults.random_faults import random_faults, random_host_faults
from kungfu.testing.faults.run_faults import FaultDone, run_faults
from kungfu.testing.faults.schedule import Fault, ResizeJob, SignalHosts, SignalPeers, When, parse

__all__ = [
    "Fault",
    "FaultDone",
    "JobView",
    "JobWatcher",
    "ResizeJob",
    "SignalHosts",
    "SignalPeers",
    "When",
    "parse",
    "random_faults",
    "random_host_faults",
    "run_faults",
]
