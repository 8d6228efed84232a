"""What a person sees while a job runs: plain lines for now."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kungfu.runtime.agent.agent import Ending


class PlainConsole:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> PlainConsole:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()

    def line(self, who: str, text: str) -> None:
        print(f"[{who}] {text}", flush=True)

    def event(self, fields: Mapping[str, Any]) -> None:
        print(f"kungfu: {dict(fields)}", flush=True)

    def status(self, fields: Mapping[str, Any]) -> None:
        pass

    def ended(self, ending: Ending) -> None:
        if ending.failure:
            print(f"kungfu-run: {ending.failure.text}\n" + "\n".join(ending.failure.output), file=sys.stderr)


def make_console(folder: Path) -> PlainConsole:
    return PlainConsole(folder)
