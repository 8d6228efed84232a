import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kungfu.errors import DeadlineExceeded, UsageError
from kungfu.testing.faults import parse, run_faults
from tests.event_log.made import write_record as write


@contextmanager
def processes(folder, count) -> Iterator[list[subprocess.Popen]]:
    """Real processes in the record of a job, all in its first view after ten steps; ended by their ids."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(count)]
    events = [{"event": "spawned", "peer": peer, "pid": child.pid} for peer, child in enumerate(children)]
    write(folder, *events, *view(*range(count)))
    write(folder, {"step": 10})
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()


def view(*peers, version=1, begins=0):
    """A view as the record tells of it, and that a peer of it entered it after so many steps."""
    return [
        {"event": "view", "version": version, "peers": [*peers]},
        {"event": "span", "view": version, "step": begins},
    ]


def test_faults_hit_the_processes_behind_the_ranks(tmp_path):
    asked = []

    def resize(size):
        asked.append(size)
        write(tmp_path, {"event": "lost", "peer": 1}, *view(0, 2))

    with processes(tmp_path, 3) as children:
        faults = parse("at step 10 kill rank 1; at step 10 resize 2")
        carried = run_faults(faults, tmp_path, size=3, resize=resize)
        assert children[1].wait() == -signal.SIGKILL
        assert children[0].poll() is children[2].poll() is None
    assert asked == [2]
    assert [(one.step, one.peers) for one in carried] == [(10, (1,)), (10, ())]


def test_a_joiner_that_comes_in_while_the_seconds_pass_is_still_who_is_hit(tmp_path):
    def pause(seconds):
        # The seconds after the moment, and then those in which the job settles.
        write(tmp_path, *(view(0, 1) if seconds == 0.4 else [{"event": "lost", "peer": 1}, *view(0)]))

    with processes(tmp_path, 2) as children:
        write(tmp_path, *view(0), {"event": "spawned", "peer": 1, "pid": children[1].pid})
        carried = run_faults(parse("at step 1 after 0.4 s kill joiner"), tmp_path, size=1, resize=print, pause=pause)
        assert children[1].wait() == -signal.SIGKILL
        assert children[0].poll() is None
    assert [one.peers for one in carried] == [(1,)]


def test_a_job_in_which_a_stopped_peer_still_lives_has_not_settled(tmp_path):
    with processes(tmp_path, 2), pytest.raises(DeadlineExceeded, match=r"for once settled; by step 10 peers \[0, 1\]"):
        run_faults(parse("at step 1 freeze rank 0"), tmp_path, size=2, resize=print, deadline_s=0.05)


def test_a_peer_that_may_go_on_does_not_keep_a_job_from_settling(tmp_path):
    with processes(tmp_path, 2):
        carried = run_faults(parse("at step 1 freeze rank 0; at step 1 thaw rank 0"), tmp_path, size=2, resize=print)
    assert [one.peers for one in carried] == [(0,), (0,)]


def test_faults_hit_the_agents_of_hosts_and_the_record_of_another_host_is_followed(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with processes(tmp_path, 2) as agents:
        told = [{"event": "host", "host": host, "pid": agent.pid} for host, agent in enumerate(agents)]
        told += [{"event": "spawned", "peer": peer, "pid": agents[0].pid, "host": peer % 2} for peer in range(3)]
        for folder in folders:
            write(folder, *told, *view(0, 1, 2))
            write(folder, {"step": 10})
        write(folders[1], {"event": "host lost", "host": 0, "why": "silent"}, *view(1))
        carried = run_faults(parse("at step 10 kill host 0"), folders, size=1, resize=print)
        assert agents[0].wait() == -signal.SIGKILL
        assert agents[1].poll() is None
    assert [one.peers for one in carried] == [(0, 2)]


def test_a_host_that_was_given_up_may_still_be_woken_but_its_record_counts_no_more(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with processes(tmp_path, 2) as agents:
        told = [{"event": "host", "host": host, "pid": agent.pid} for host, agent in enumerate(agents)]
        told += [{"event": "spawned", "peer": 0, "pid": agents[0].pid, "host": 0}, *view(0)]
        for folder in folders:
            write(folder, *told)
            write(folder, {"step": 10})
        write(folders[1], {"event": "spawned", "peer": 1, "pid": agents[1].pid, "host": 1})
        write(folders[1], {"event": "host lost", "host": 0}, *view(1))
        carried = run_faults(parse("at step 1 freeze host 0; once settled thaw host 0"), folders, size=1, resize=print)
    assert [one.peers for one in carried] == [(0,), ()]


def test_a_host_that_is_not_in_cannot_be_hit(tmp_path):
    write(tmp_path, {"event": "host", "host": 0, "pid": -1})
    write(tmp_path, {"step": 1})
    with pytest.raises(UsageError, match=r"kill host 1: the hosts \[0\] are in"):
        run_faults(parse("at step 1 kill host 1"), tmp_path, size=1, resize=print)


def test_a_moment_that_never_comes_is_named_with_what_there_is(tmp_path):
    with processes(tmp_path, 1), pytest.raises(DeadlineExceeded, match=r"for at next rescale; by step 10 peers \[0\]"):
        run_faults(parse("at next rescale kill rank 0"), tmp_path, size=1, resize=print, deadline_s=0.05)


def test_a_job_that_is_over_too_early_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="the job ended before the moment at step 5; let it train longer"):
        run_faults(parse("at step 5 kill rank 0"), tmp_path, size=1, resize=print, over=lambda: True)


@pytest.mark.parametrize("who", ["rank 1", "joiner"])
def test_a_fault_that_could_hit_nobody_is_an_error(tmp_path, who):
    with processes(tmp_path, 1) as children, pytest.raises(UsageError, match="there is nobody to kill"):
        run_faults(parse(f"at step 1 kill {who}"), tmp_path, size=1, resize=print)
    assert children[0].returncode == -signal.SIGKILL, "by the end of this test, not by the fault"
