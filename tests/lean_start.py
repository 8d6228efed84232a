"""The environment of programs that tests start: they load nothing that no test needs, and collect garbage seldom."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["environment"]

_TESTS = Path(__file__).parent


def environment(*without: str) -> dict[str, str]:
    """That of the tests, for a program that finds kungfu and the tests, but not these libraries."""
    return os.environ | {
        "KUNGFU_TEST_WITHOUT": " ".join(without),
        "PYTHONPATH": os.pathsep.join([str(_TESTS / "lean"), str(_TESTS.parent)]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
