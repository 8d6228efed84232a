"""A schedule of faults for a real job, written or drawn at random, and its injection while the job trains."""

from kungfu.event_log.record_follower import JobWatcher
from kungfu.testing.faults.freezer import Freezer
from kungfu.testing.faults.inject import InjectedJob, Injection, InjectionLimits, inject
from kungfu.testing.faults.schedule import Fault, SignalHosts, SignalPeers, SlowPeers, When, parse, survivable_faults

__all__ = [
    "Fault",
    "Freezer",
    "InjectedJob",
    "Injection",
    "InjectionLimits",
    "JobWatcher",
    "SignalHosts",
    "SignalPeers",
    "SlowPeers",
    "When",
    "inject",
    "parse",
    "survivable_faults",
]
