"""A schedule of faults for a real job: written down, or drawn at random, and carried out while the job trains."""

from kungfu.testing.faults.chance import random_faults, random_host_faults
from kungfu.testing.faults.drive import Carried, drive
from kungfu.testing.faults.schedule import Fault, Resize, Send, SendHosts, When, parse
from kungfu.testing.faults.watch import Sight, Watch

__all__ = [
    "Carried",
    "Fault",
    "Resize",
    "Send",
    "SendHosts",
    "Sight",
    "Watch",
    "When",
    "drive",
    "parse",
    "random_faults",
    "random_host_faults",
]
