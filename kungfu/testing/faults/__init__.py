"""Faults for a real job: a schedule, written or drawn at random, and the injection of its faults during training."""

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
