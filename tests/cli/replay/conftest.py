"""What `kungfu replay` prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kungfu.cli.main import main

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """Runs the command with these words, and gives what it prints."""
    monkeypatch.setenv("COLUMNS", "160")

    def replayed(*words: object) -> str:
        assert main(["replay", *map(str, words)]) == 0
        return capsys.readouterr().out

    return replayed
