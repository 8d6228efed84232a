"""The page on watching jobs names the metrics and tags that there are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.export.test_prometheus import served_names

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def test_the_page_lists_every_metric_and_no_other() -> None:
    listed = {name for line in PAGE.read_text().splitlines() if line.startswith("| `kungfu_") for name in
              re.findall(r"`(kungfu_[a-z_]+)", line.split(" | ")[0])}  # fmt: skip
    served = {re.sub(r"_(bucket|sum|count)$", "", name) for name in served_names()}
    assert {name for name in served if not name.endswith("_created")} == listed
