"""``kungfu explain``: text on standard output, and no TensorFlow in the process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from kungfu.cli.explain import explain_command
from kungfu.errors import PolicyError

SPEC = "kungfu.policies:gns_batch(max_peers=8)"


def test_it_prints_the_plan_and_gives_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command(SPEC) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("rule gns_batch\n")
    assert "0 extra messages per step" in printed


def test_a_policy_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(PolicyError, match=r"kungfu.policies has no 'gns'"):
        explain_command("kungfu.policies:gns")


def test_it_needs_no_tensorflow() -> None:
    program = f"import sys; from kungfu.cli.explain import explain_command; explain_command({SPEC!r}); "
    started = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", program + "sys.exit('tensorflow' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "0 extra messages per step" in ended.stdout
    assert time.perf_counter() - started < 10  # under a second on an idle machine; ten on a busy one
