"""Writes docs/events.schema.json, the JSON schema of a job's events, from their types."""

from __future__ import annotations

import json
from pathlib import Path

from kungfu.event_log.codec import events_schema

PAGE = Path(__file__).parent.parent / "docs" / "events.schema.json"


def page() -> str:
    """The JSON schema as text."""
    return json.dumps(events_schema(), indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
