"""What kungfu does around Horovod's engine; the engine itself runs in the tests of the attachment."""

import sys
import threading

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod import engine
from kungfu.runtime.attachment.horovod.topology import topology_of


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
