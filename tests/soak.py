"""The mark of a test that is too long for the gate, and the length of one that draws its examples."""

from __future__ import annotations

import os

import pytest

__all__ = ["RANDOM_EXAMPLES", "SOAK"]

# Of a plan or a schedule: the gate always draws the same ones, and make soak draws others.
RANDOM_EXAMPLES = int(os.environ.get("KUNGFU_SOAK_EXAMPLES", "200"))
SOAK = pytest.mark.skipif("KUNGFU_SOAK" not in os.environ, reason="make soak runs it")
