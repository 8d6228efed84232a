"""The guide to the record: its example is run, and its table is the schema."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from kungfu.compiler import compile_policies
from kungfu.policies import gns_batch
from kungfu.training.telemetry.trace_recorder import SNAPSHOT_EVERY
from tests.trace.recorded import recorded

GUIDE = Path(__file__).parents[2] / "docs" / "trace.md"


def test_its_example_prints_what_it_says() -> None:
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False)
    assert tried == 4
    assert failed == 0


def test_its_table_names_every_key_of_every_line() -> None:
    lines = recorded(compile_policies([gns_batch(max_peers=8, every=4, decay=0.5, min_estimates=2)]))
    keys = {key for line in lines for key in line} | {"cut", "limit_bytes"}
    named = set(re.findall(r"^\| `(\w+)` \|", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert named == keys


def test_the_number_of_steps_between_snapshots_is_the_one_it_tells() -> None:
    assert SNAPSHOT_EVERY == 100
    assert "every hundredth step" in GUIDE.read_text(encoding="utf-8")
