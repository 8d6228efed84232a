"""The commands of ``kungfu``, run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kungfu.cli.main import main

Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printed:
    """Runs ``kungfu`` with these words, checks its exit code, and gives its output, or its error for code 2."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: object, code: int = 0) -> str:
        assert main([*map(str, words)]) == code
        out, err = capsys.readouterr()
        return err if code == 2 else out

    return run
