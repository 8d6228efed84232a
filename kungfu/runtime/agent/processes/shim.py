"""Becomes the user's command, after asking the kernel to end it with the agent that started it.

Run as a file, not as a module: it is the first thing in every peer and imports almost nothing.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(agent: int, command: list[str]) -> None:
    """Replaces this process by ``command``; the kernel kills it when process ``agent`` ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:  # it died before the line above
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
