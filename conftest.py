"""Loads the package before pytest collects from it: `kungfu.policy_definition` is the decorator, and must stay it.

The gate draws the same 100 examples each time, so that it says something about the change and nothing about luck; with
``KUNGFU_RANDOM=1``, as `make soak` runs it, hypothesis looks for 500 new ones.
"""

import gc
import os
import threading
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

import kungfu  # noqa: F401 - loaded for its names

_BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine that others use
settings.register_profile("gate", _BUSY, derandomize=True)
settings.register_profile("random", _BUSY, max_examples=500)
settings.load_profile("random" if os.environ.get("KUNGFU_RANDOM") else "gate")


# Their tests wait for processes most of the time, so that two workers beside them keep two cores busy.
_WAITING = ("tests/jobs/", "tests/test_distribution.py", "tests/runtime/attachment/", "tests/docs/test_site.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests wait are spread among those that compute, and end before them; else the order stays.

    Every test of a whole job takes over a second.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith("tests/jobs/"):
            item.add_marker(pytest.mark.slow)
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    waiting = [name for name in files if name.startswith(_WAITING)]
    computing = [name for name in files if name not in waiting]
    # The last of those that wait begins at nine tenths of the run: alone at its end, it would leave a core idle.
    apart = 0.9 * len(computing) / max(1, len(waiting))
    places = {name: index * apart for index, name in enumerate(waiting)} | {
        name: index for index, name in enumerate(computing)
    }
    items[:] = [item for name in sorted(files, key=lambda name: places[name]) for item in files[name]]


def pytest_collection_finish() -> None:
    """Full collections, of which Keras asks for many, pass over what has been imported: it stays."""
    gc.collect()
    gc.freeze()
    # A graph is hundreds of thousands of objects that stay: looking through them again and again takes a tenth of it.
    gc.set_threshold(50_000, 20, 50)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what this machine could not test; what only `make soak` runs is no news."""
    skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in sorted(skipped.items()):
        if "make soak" not in reason:
            terminalreporter.write_line(f"{count} not tested: {reason.removeprefix('Skipped: ')}")


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
