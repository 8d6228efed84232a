"""The parent of one peer: starts the user's command, says how it ended, and lets nothing of it outlive the agent.

Run as a file, not as a module: there is one beside every peer, and it imports almost nothing. ``line`` is a socket to
the agent. Up it go the peer's process id and its exit code (negative: the signal), each as a line of digits. Down it
come single bytes: the number of a signal for the peer's process group, or 0: all that the peer has left behind shall
end. So it shall when the agent is gone, which closes the socket. As the subreaper of its descendants this process is
the parent of each that has lost its own, in whatever session or group it is; when none is left it ends as the peer did.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END = 0


class _Shim:
    def __init__(self, line: int) -> None:
        self.line = line
        self.peer = self.status = 0
        self.over = self.alone = False  # the peer has ended; the agent is gone
        self.woken, wakes = os.pipe()
        for descriptor in (self.woken, wakes):
            os.set_blocking(descriptor, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def run(self, command: list[str]) -> None:
        """Until the peer has ended and nothing of it is left, or is to be left."""
        parent = os.getpid()
        self.peer = os.fork()
        if self.peer == 0:
            _become(command, parent)
        self.say(self.peer)
        replicate_nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):  # what the peer prints ends with the peer
            os.dup2(replicate_nowhere, descriptor)
        while self.reaped() and not self.told_to_end():
            pass
        while self.reaped(block=True):
            pass

    def say(self, number: int) -> None:
        """Tells the agent, if it is there."""
        try:
            os.write(self.line, b"%d\n" % number)
        except OSError:
            self.alone = True

    def reaped(self, *, block: bool = False) -> bool:
        """Buries those who have ended; whether any process is left. With ``block`` all that are left are killed."""
        while True:
            if block:
                _kill_children()
            try:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.peer:
                self.over, self.status = True, os.waitstatus_to_exitcode(status)
                self.say(self.status)

    def told_to_end(self) -> bool:
        """Waits until something happens; whether all that is left shall end.

        SIGTERM is heard and passed over: who sends it to all processes of a host sends it to the peer and the agent
        too, for whom it is a notice.
        """
        ready, _, _ = select.select([self.line, self.woken], [], [])
        if self.woken in ready:
            os.read(self.woken, 64)
        if self.line not in ready:
            return False
        orders = os.read(self.line, 64)
        self.alone = self.alone or not orders
        for number in orders:
            self.pass_on(number)
        return not orders or _END in orders or signal.SIGKILL in orders

    def pass_on(self, number: int) -> None:
        if number != _END and not self.over:  # until it is reaped nobody else can have its number
            try:
                os.killpg(self.peer, number)
            except OSError:
                os.kill(self.peer, number)  # it has yet to make its group


def _become(command: list[str], parent: int) -> None:
    """Turns the forked child into the user's command; the kernel kills it when its parent ends."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() == parent:
            os.execvp(command[0], command)
    except OSError:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _kill_children() -> None:
    own = str(os.getpid())
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    parent = stat.read().rpartition(")")[2].split()[1]
                if parent == own:
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue  # it has just ended


def main(line: int, folder: str, command: list[str]) -> None:
    """Runs ``command``; ``folder`` holds its temporary files, and goes with the agent."""
    os.set_inheritable(line, False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if select.select([line], [], [], 0)[0]:  # nothing can be said yet: the agent died before the peer came up
        sys.exit(1)
    shim = _Shim(line)
    shim.run(command)
    if shim.alone and folder:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    if shim.status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.set_wakeup_fd(-1)
        signal.signal(-shim.status, signal.SIG_DFL) if -shim.status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -shim.status)
    os._exit(shim.status & 0xFF)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
