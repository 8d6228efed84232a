"""The engine of Horovod as kungfu starts and stops it, and its errors; it runs in the tests of the attachment."""

import itertools
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure, UsageError
from kungfu.runtime.attachment.horovod import engine
from kungfu.runtime.attachment.horovod.engine import Topology, read_failure, read_start_failure, topology_of


def test_a_horovod_that_cannot_be_loaded_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod.tensorflow.mpi_ops", None)
    with pytest.raises(UsageError, match=r"'horovod' cannot be loaded .* `python -m kungfu\.native\.horovod`"):
        engine.load()


def test_a_loopback_address_is_the_loopback_interfaces_and_another_machines_is_none() -> None:
    assert engine.interface_of("127.0.0.1")
    assert engine.interface_of("127.0.0.2") == engine.interface_of("localhost") == engine.interface_of("127.0.0.1")
    assert engine.interface_of("198.51.100.7") == ""
    assert engine.interface_of("no-such-host.invalid") == ""


def test_a_machine_named_like_a_loopback_address_is_refused_between_hosts() -> None:
    between = topology_of(0, addresses=["192.0.2.1:1", "192.0.2.2:1"])
    with pytest.raises(UsageError, match=r"localhost, stands for a loopback address .* '192\.0\.2\.1 localhost'"):
        engine.check_reach(between, name="localhost")
    engine.check_reach(between, name="192.0.2.1")
    engine.check_reach(between, name="no-such-host.invalid")
    engine.check_reach(topology_of(0, addresses=["192.0.2.1:1", "192.0.2.1:2"]), name="localhost")
    engine.check_reach(topology_of(0, addresses=["127.0.0.1:1", "127.0.0.2:1"]), name="localhost")


class Engine:
    """Horovod's, as far as two may stop it at once; it notes whether they did."""

    def __init__(self) -> None:
        self.stopping, self.second, self.overlapped = threading.Event(), threading.Event(), list[bool]()

    def shutdown(self) -> None:
        if self.stopping.is_set():
            self.second.set()
            return
        self.stopping.set()
        self.overlapped.append(self.second.wait(0.3))


def test_two_threads_stop_it_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them would wait for ever: a program that ends withdraws in one thread and closes in another."""
    ops = Engine()
    monkeypatch.setattr(engine, "load", lambda: ops)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    assert ops.stopping.wait(180.0)
    engine.stop()
    stopping.join(180.0)
    assert (ops.overlapped, ops.second.is_set()) == ([False], True)


def test_hosts_of_different_sizes_are_counted_only_where_they_have_the_local_rank() -> None:
    addresses = ["a:1", "b:1", "a:2", "c:1", "c:2"]
    across = [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in _all(addresses)]
    assert across == [(0, 2, 0, 3), (0, 1, 1, 3), (1, 2, 0, 2), (0, 2, 2, 3), (1, 2, 1, 2)]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_ranks_number_their_groups_without_gaps_and_the_ring_visits_each_host_once(hosts: list[str]) -> None:
    places = _all([f"{host}:1" for host in hosts])
    for mine in places:
        local = [p.local_rank for p in places if p.hostname == mine.hostname]
        cross = [p.cross_rank for p in places if p.local_rank == mine.local_rank]
        assert sorted(local) == list(range(mine.local_size))
        assert sorted(cross) == list(range(mine.cross_size))
    assert sorted(p.rank for p in places) == list(range(len(hosts)))
    ring = sorted(places, key=lambda place: place.rank)
    assert [name for name, _ in itertools.groupby(p.hostname for p in ring)] == list(dict.fromkeys(hosts))


def test_peers_that_are_grouped_by_host_keep_their_ranks_in_the_ring() -> None:
    assert [p.rank for p in _all(["a:1", "a:2", "b:1", "b:2"])] == [0, 1, 2, 3]
    assert [p.rank for p in _all(["b:1", "a:2", "b:3", "a:4"])] == [0, 2, 1, 3]


@pytest.mark.parametrize("address", ["somewhere", ":80", "a:", "a:b"])
def test_an_address_that_is_not_host_and_port_is_refused_with_its_text(address: str) -> None:
    with pytest.raises(UsageError, match=f"{address!r}; expected is HOST:PORT"):
        topology_of(0, addresses=[address])


def test_a_rank_outside_the_view_is_refused() -> None:
    with pytest.raises(UsageError, match=r"rank 2 is not in a view of 2 peers; allowed is 0\.\.1"):
        topology_of(2, addresses=["a:1", "b:1"])


def _all(addresses: list[str]) -> list[Topology]:
    return [topology_of(rank, addresses=addresses) for rank in range(len(addresses))]


# ---- errors ---------------------------------------------------------------------------------------------------------

GLOO = "[/tmp/pip-install-x/horovod_1/third_party/compatible17_gloo/gloo/transport/tcp/"
NODE = "\n\t [[{{node cond/kungfu_gradients_float32}}]] [Op:__inference__step_991]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Horovod has been shut down. This was caused by an exception", "Horovod has been shut down"),
        (
            f"{GLOO}pair.cc:598] Connection closed by peer [10.77.0.3]:64726",
            "Connection closed by peer [10.77.0.3]:64726",
        ),
        (f"{GLOO}unbound_buffer.cc:133] Timed out waiting 20000ms for send operation to complete", "Timed out waiting"),
    ],
)
def test_a_message_of_horovods_that_failed_is_a_lost_peer(text: str, said: str) -> None:
    found = read_failure(f"Graph execution error:\n{text}{NODE}")
    assert isinstance(found, PeerFailure)
    assert str(found).startswith(f"a peer died or left, and the all-reduce with it ({said}")


def test_a_message_that_this_peer_gave_up_is_a_deadline_with_the_ranks_it_waited_for() -> None:
    gave_up = DeadlineExceeded("waited 5.0 s in a message for rank 1", waiting_for=[1], waited_s=5.0)
    assert read_failure("Horovod has been shut down. This was caused by an exception", gave_up=gave_up) is gave_up


def test_tensors_that_differ_are_a_defect_and_nobodys_loss() -> None:
    assert type(read_failure("Mismatched ALLREDUCE tensor shapes")) is InternalError


def test_an_error_of_the_users_own_stays_what_it_is() -> None:
    assert read_failure("Input to reshape is a tensor with 6 values") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{GLOO}pair.h:326] Connect timeout [127.0.0.1]:49568", "Connect timeout [127.0.0.1]:49568"),
        (f"{GLOO}http_store.cc:54] {GLOO}http_store.cc:54] Wait timeout after 12 seconds", "Wait timeout after 12 s"),
        ("HTTP request failed.", "HTTP request failed."),
    ],
)
def test_a_start_that_failed_is_a_lost_peer_of_that_view(text: str, said: str) -> None:
    found = read_start_failure(text, view=7)
    assert isinstance(found, PeerFailure)
    assert found.view == 7
    assert str(found).startswith(f"a peer of view 7 died or left while the peers connected ({said}")


def test_a_start_for_which_this_machine_lacks_the_interface_is_nobodys_loss() -> None:
    text = f"[enforce fail at {GLOO[1:]}device.cc:79] ifa != nullptr. Unable to find address for: eth9"
    found = read_start_failure(text, view=7)
    assert type(found) is InternalError
    assert str(found) == "horovod cannot start on this machine, for view 7: Unable to find address for: eth9"
