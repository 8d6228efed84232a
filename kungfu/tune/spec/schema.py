"""The specification's JSON schema, for editors and checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kungfu.tune.spec.sections import REQUIRED, SECTIONS, Key

__all__ = ["json_schema"]


def json_schema() -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of a tuning specification, made from the same table that reads one.

    >>> json_schema()["properties"]["cloud"]["required"]
    ['gpus_per_instance', 'price']
    """
    sections = {name: _section(keys) for name, keys in SECTIONS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A hyperparameter search to be planned",
        "type": "object",
        "properties": sections,
        "required": [name for name, section in sections.items() if section["required"]],
        "additionalProperties": False,
    }


def _section(keys: Mapping[str, Key]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _property(key) for name, key in keys.items()},
        "required": [name for name, key in keys.items() if key.default is REQUIRED],
        "additionalProperties": False,
    }


def _property(key: Key) -> dict[str, Any]:
    shown = {} if key.shown is None else {"default": key.shown}
    return {"description": key.meaning, **key.kind.schema, **shown}
