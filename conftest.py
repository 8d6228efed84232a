"""Loads the package before pytest collects from it: `kungfu.policy_definition` is the decorator, and must stay it.

The gate draws the same examples each time, so that it says something about the change and nothing about luck; with
``KUNGFU_RANDOM=1``, as `make soak` runs it, hypothesis looks for new ones.
"""

import gc
import os
import threading
import time

import pytest
from hypothesis import settings

import kungfu  # noqa: F401 - loaded for its names

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("KUNGFU_RANDOM") else "gate")


# They wait for processes while other workers compute, and one that began last would leave the other cores idle.
_LONGEST_FIRST = ("tests/jobs/", "tests/test_distribution.py", "tests/runtime/attachment/", "tests/docs/test_site.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take longest come first; of the others the order stays."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST_FIRST))


def pytest_collection_finish() -> None:
    """Full collections, of which Keras asks for many, pass over what has been imported: it stays."""
    gc.collect()
    gc.freeze()
    # A graph is hundreds of thousands of objects that stay: looking through them again and again takes a tenth of it.
    gc.set_threshold(50_000, 20, 50)


_COLLECT_EVERY_S = 20.0
_collected = [time.monotonic()]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a module no agent of its tests may have a message under way: it would disturb others."""
    if nextitem is not None and nextitem.path == item.path:
        return
    clients = [thread for thread in threading.enumerate() if thread.name == "kungfu-peer-client"]
    if clients or time.monotonic() - _collected[0] > _COLLECT_EVERY_S:
        # What modules leave stays, too.
        gc.collect()
        gc.freeze()
        _collected[0] = time.monotonic()
    for thread in clients:
        thread.join(30.0)
        assert not thread.is_alive(), f"a test of {item.path.name} has not closed its agent"
