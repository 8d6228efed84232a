"""What kungfu does around Horovod's engine; the engine itself runs in the tests of the attachment."""

import sys

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod import engine


def test_a_horovod_that_cannot_be_loaded_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod.tensorflow.mpi_ops", None)
    with pytest.raises(UsageError, match=r"'horovod' cannot be loaded .* `make setup`"):
        engine.load()


def test_every_loopback_address_is_the_loopback_interfaces() -> None:
    assert engine.interface_of("127.0.0.1")
    assert engine.interface_of("127.0.0.2") == engine.interface_of("localhost") == engine.interface_of("127.0.0.1")


def test_an_address_of_another_machine_is_no_interface_of_this_one() -> None:
    assert engine.interface_of("198.51.100.7") == ""
    assert engine.interface_of("no-such-host.invalid") == ""
