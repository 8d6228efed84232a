"""The parent of one peer: executes the user's command, reports its exit, and lets no descendant outlive the agent.

This file is run as a script, not as a module, once per peer, and imports almost nothing. Over a socket to the agent, it
sends the peer's process id and the peer's exit code (negative: the signal), each as a line of digits. It receives
single bytes: the number of a signal for the peer's process group, or 0 to kill all remaining processes. It also kills
all remaining processes when the socket closes, because then the agent is gone.

The kernel kills the peer if this process ends (a parent-death signal, ``prctl(PR_SET_PDEATHSIG)``). As subreaper of its
descendants (``PR_SET_CHILD_SUBREAPER``), this process becomes the parent of orphaned descendants in any session or
group. When no descendant is left, this process exits with the status of the peer.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_ALL = 0
# Python's process that removes the named semaphores of an ended program ends by itself after all others.
_TRACKER, _TRACKER_ENDS_WITHIN_S = b"multiprocessing.resource_tracker", 10.0


class _Subreaper:
    def __init__(self, control: int) -> None:
        self.control = control
        self.peer = self.status = 0
        self.peer_exited = self.agent_gone = False
        self.woken, wakes = os.pipe()
        for descriptor in (self.woken, wakes):
            os.set_blocking(descriptor, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def run(self, command: list[str]) -> None:
        """Runs the command until the peer and all its descendants have exited or have been killed."""
        parent = os.getpid()
        self.peer = os.fork()
        if self.peer == 0:
            _exec(command, parent)
        self.report(self.peer)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):  # the output must end when the peer exits
            os.dup2(null, descriptor)
        while self.reap() and not self.must_kill_all():
            pass
        signal.signal(signal.SIGALRM, lambda number, frame: _kill_children(spared=b""))
        signal.setitimer(signal.ITIMER_REAL, _TRACKER_ENDS_WITHIN_S)
        while self.reap(kill=True):
            pass

    def report(self, number: int) -> None:
        """Sends a number to the agent, or notes that the agent is gone."""
        try:
            os.write(self.control, b"%d\n" % number)
        except OSError:
            self.agent_gone = True

    def reap(self, *, kill: bool = False) -> bool:
        """Reaps children that have exited, and with ``kill`` kills all others; returns True if any are left."""
        while True:
            if kill:
                _kill_children()
            try:
                pid, status = os.waitpid(-1, 0 if kill else os.WNOHANG)
            except ChildProcessError:  # there is no child left
                return False
            if pid == 0:  # some children still run
                return True
            # The peer itself: its exit code is reported at once, even if other children are left.
            if pid == self.peer:
                self.peer_exited, self.status = True, os.waitstatus_to_exitcode(status)
                self.report(self.status)

    def must_kill_all(self) -> bool:
        """Waits for a message of the agent or a signal; returns True if all remaining processes must be killed. SIGTERM
        to this process has no effect: a platform that sends SIGTERM to all processes of a host also sends it to the
        peer and to the agent, which treat the signal as a preemption notice."""
        ready, _, _ = select.select([self.control, self.woken], [], [])
        # A child has exited, or SIGTERM has come.
        if self.woken in ready:
            os.read(self.woken, 64)
        if self.control not in ready:
            return False
        # An empty read means that the agent is gone.
        received = os.read(self.control, 64)
        self.agent_gone = self.agent_gone or not received
        for number in received:
            self.send_signal(number)
        return not received or _KILL_ALL in received or signal.SIGKILL in received

    def send_signal(self, number: int) -> None:
        """Sends a signal to the peer's process group (SIGKILL only to the peer), unless the peer has exited."""
        if self.peer_exited or number == _KILL_ALL:  # until the peer is reaped, its id is not reused
            return
        # The descendants of the peer are killed afterwards.
        if number == signal.SIGKILL:
            os.kill(self.peer, number)
        else:
            try:
                os.killpg(self.peer, number)
            except OSError:
                os.kill(self.peer, number)  # the peer has not made its group yet


def _begin_session() -> None:
    """Gives the forked child a new session and default signal handlers; the parent's exit will kill the child."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _exec(command: list[str], parent: int) -> None:
    """Executes the user's command in the forked child; the kernel kills the child when its parent exits."""
    try:
        _begin_session()
        # Otherwise the parent ended before the parent-death signal was set.
        if os.getppid() == parent:
            os.execvp(command[0], command)
    except OSError:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _kill_children(spared: bytes = _TRACKER) -> None:
    """Kills the children of this process, except processes with `spared` in their command line."""
    own = str(os.getpid())
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    parent = stat.read().rpartition(")")[2].split()[1]
                if parent == own and not (spared and _runs(entry, spared)):
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue  # the process has just exited


def _runs(pid: str, word: bytes) -> bool:
    """True if a process has `word` in its command line."""
    with open(f"/proc/{pid}/cmdline", "rb") as words:
        return word in words.read()


def main(control: int, folder: str, command: list[str]) -> None:
    """Runs ``command``; removes ``folder``, the command's temporary files, if the agent is gone."""
    os.set_inheritable(control, False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # No message can have come yet: the agent ended before the peer was started.
    if select.select([control], [], [], 0)[0]:
        sys.exit(1)
    subreaper = _Subreaper(control)
    subreaper.run(command)
    # No other process would remove the folder.
    if subreaper.agent_gone and folder:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    # The peer was killed by a signal: this process ends by the same signal, without a second core file.
    if subreaper.status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.set_wakeup_fd(-1)
        number = -subreaper.status
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(subreaper.status & 0xFF)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
