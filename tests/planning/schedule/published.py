"""Published traces and curves, which the repository does not hold: tests that read them skip where they are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published traces are not part of the repository")
