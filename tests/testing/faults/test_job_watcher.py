"""A job that is followed by its record."""

from kungfu.testing.faults import JobWatcher
from tests.event_log.made import write_record as write


def test_members_and_joiners_follow_from_the_record(tmp_path):
    watch = JobWatcher(tmp_path)
    assert watch.look().members == (), "before there is a record"
    write(tmp_path, *({"event": "spawned", "peer": peer, "pid": 70 + peer} for peer in range(3)))
    write(tmp_path, {"event": "view", "version": 1, "peers": [1, 0]})
    sight = watch.look()
    assert (sight.members, sight.joiners) == ((1, 0), (2,))
    assert not sight.is_settled(2), "somebody is on the way"
    write(tmp_path, {"event": "dismissed", "peer": 2}, {"event": "span", "view": 1, "step": 0})
    assert not watch.look().is_settled(2), "a step is to come"
    write(tmp_path, {"step": 1})
    assert watch.look().is_settled(2)
    write(tmp_path, {"event": "lost", "peer": 1})
    sight = watch.look()
    assert sight.members == (0,)
    assert not sight.is_settled(1), "the view still has who is lost"
    write(tmp_path, {"event": "view", "version": 3, "peers": [0]})
    write(tmp_path, {"step": 2})
    assert not watch.look().is_settled(1), "nobody said yet after which step it came"
    write(tmp_path, {"event": "span", "view": 3, "step": 2})
    assert not watch.look().is_settled(1)
    write(tmp_path, {"step": 3})
    assert watch.look().is_settled(1)


def test_a_peer_that_left_is_no_member_though_its_process_may_run_on(tmp_path):
    write(tmp_path, {"event": "view", "version": 1, "peers": [0, 1]}, {"event": "finished", "peer": 0, "leaving": True})
    assert JobWatcher(tmp_path).look().members == (1,)


def test_a_host_that_is_gone_takes_its_peers_along(tmp_path):
    watch = JobWatcher(tmp_path)
    write(tmp_path, *({"event": "host", "host": host, "name": "a", "pid": 50 + host} for host in range(2)))
    write(tmp_path, *({"event": "spawned", "peer": peer, "pid": 70 + peer, "host": peer % 2} for peer in range(4)))
    write(tmp_path, {"event": "view", "version": 1, "peers": [0, 1, 2]}, {"event": "peer ended", "peer": 2})
    sight = watch.look()
    assert ({host: one.pid for host, one in sight.hosts.items()}, sight.hosts_present) == ({0: 50, 1: 51}, (0, 1))
    assert (sight.peers_of(0), sight.peers_of(1)) == ((0,), (1, 3))
    write(tmp_path, {"event": "host lost", "host": 1, "why": "silent"})
    sight = watch.look()
    assert (sight.hosts_present, sight.members, sight.joiners) == ((0,), (0,), ())


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    watch, path = JobWatcher(tmp_path), tmp_path / "metrics.jsonl"
    path.write_text('{"step": 4}\n{"ste')
    assert watch.look().steps == 4
    path.write_text('{"step": 4}\n{"step": 5}\n')
    assert watch.look().steps == 5


def test_of_the_steps_of_a_long_record_the_newest_are_read_and_all_that_come(tmp_path):
    write(tmp_path, *({"step": step, "time": 1.0 * step, "noise": 0.5} for step in range(1, 40_001)))
    watch = JobWatcher(tmp_path)
    assert (watch.look().steps, watch.look().stepped_at) == (40_000, 40_000.0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40001}\n{"step": 4000')
    assert watch.look().steps == 40_001
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("2}\n")
    assert watch.look().steps == 40_002


def test_a_barrier_counts_once_whatever_was_asked_of_it(tmp_path):
    write(tmp_path, {"event": "called", "step": 4}, {"event": "decision", "step": 4}, {"event": "called", "step": 8})
    assert JobWatcher(tmp_path).look().barriers == 2
