"""What kungfu does around Horovod's engine; the engine itself runs in the tests of the attachment."""

import sys

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod import engine


def test_a_horovod_that_cannot_be_loaded_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod.tensorflow.mpi_ops", None)
    with pytest.raises(UsageError, match=r"'horovod' cannot be loaded .* `make setup`"):
        engine.load()
