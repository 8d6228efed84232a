"""What kungfu does around Horovod's engine; the engine itself runs in the tests of the attachment."""

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod import engine
from kungfu.runtime.attachment.horovod.engine import Topology, topology_of


def test_a_horovod_that_cannot_be_loaded_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod.tensorflow.mpi_ops", None)
    with pytest.raises(UsageError, match=r"'horovod' cannot be loaded .* `python -m kungfu\.native\.horovod`"):
        engine.load()


def test_every_loopback_address_is_the_loopback_interfaces() -> None:
    assert engine.interface_of("127.0.0.1")
    assert engine.interface_of("127.0.0.2") == engine.interface_of("localhost") == engine.interface_of("127.0.0.1")


def test_a_machine_named_like_a_loopback_address_is_refused_between_hosts() -> None:
    """A machine whose name is a loopback address is refused if others would look for it there."""
    between = topology_of(0, addresses=["192.0.2.1:1", "192.0.2.2:1"])
    with pytest.raises(UsageError, match=r"localhost, stands for a loopback address .* '192\.0\.2\.1 localhost'"):
        engine.check_reach(between, name="localhost")
    engine.check_reach(between, name="192.0.2.1")
    engine.check_reach(between, name="no-such-host.invalid")
    engine.check_reach(topology_of(0, addresses=["192.0.2.1:1", "192.0.2.1:2"]), name="localhost")
    engine.check_reach(topology_of(0, addresses=["127.0.0.1:1", "127.0.0.2:1"]), name="localhost")


def test_an_address_of_another_machine_is_no_interface_of_this_one() -> None:
    assert engine.interface_of("198.51.100.7") == ""
    assert engine.interface_of("no-such-host.invalid") == ""


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
def test_local_and_cross_ranks_number_their_groups_without_gaps(hosts: list[str]) -> None:
    places = _all([f"{host}:1" for host in hosts])
    for mine in places:
        local = [p.local_rank for p in places if p.hostname == mine.hostname]
        cross = [p.cross_rank for p in places if p.local_rank == mine.local_rank]
        assert sorted(local) == list(range(mine.local_size))
        assert sorted(cross) == list(range(mine.cross_size))


@pytest.mark.parametrize("address", ["somewhere", ":80", "a:", "a:b"])
def test_an_address_that_is_not_host_and_port_is_refused_with_its_text(address: str) -> None:
    with pytest.raises(UsageError, match=f"{address!r}; expected is HOST:PORT"):
        topology_of(0, addresses=[address])


def test_a_rank_outside_the_view_is_refused() -> None:
    with pytest.raises(UsageError, match=r"rank 2 is not in a view of 2 peers; allowed is 0\.\.1"):
        topology_of(2, addresses=["a:1", "b:1"])


def _all(addresses: list[str]) -> list[Topology]:
    return [topology_of(rank, addresses=addresses) for rank in range(len(addresses))]
