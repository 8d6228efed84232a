"""The first page: its job that grows by a command is a part of the test of the wheel, the one with a policy is here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.first_steps import PAGE, commands, script, take_steps_with_a_policy
from tests.soak import SOAK


def test_the_page_has_one_script_that_compiles_and_six_commands() -> None:
    compile(script(), str(PAGE), "exec")
    assert [command.split()[:2] for command in commands()] == [
        ["kungfu-run", "-np"],
        ["kungfu", "status"],
        ["kungfu", "resize"],
        ["kungfu", "stop"],
        ["kungfu-run", "-np"],
        ["kungfu", "why"],
    ]


def test_the_script_is_keras_but_for_the_marked_line_and_an_import() -> None:
    others = [line for line in script().splitlines() if "kf" in line]
    assert others == ["import kungfu as kf", "kf.keras.attach(model)  # the line"]


@SOAK
@pytest.mark.slow
def test_the_second_job_of_the_page_grows_to_four_peers_by_its_policy(tmp_path: Path) -> None:
    take_steps_with_a_policy(tmp_path, programs=Path(sys.executable).parent)
