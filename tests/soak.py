"""The mark of a test that is too long for the gate."""

from __future__ import annotations

import os

import pytest

__all__ = ["SOAK"]

SOAK = pytest.mark.skipif("KUNGFU_SOAK" not in os.environ, reason="make soak runs it")
