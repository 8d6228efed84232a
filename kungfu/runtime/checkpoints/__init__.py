"""Checkpoints on disk: the manifest of each, and a folder in which one replaces the other without a gap."""

from kungfu.runtime.checkpoints.folder import CheckpointFolder, find, has_step
from kungfu.runtime.checkpoints.folder_lock import FolderInUse, claim, release
from kungfu.runtime.checkpoints.manifest import (
    Manifest,
    VariableEntry,
    mismatches,
    read_manifest,
    stable_names,
    write_manifest,
)

__all__ = [
    "CheckpointFolder",
    "FolderInUse",
    "Manifest",
    "VariableEntry",
    "claim",
    "find",
    "has_step",
    "mismatches",
    "read_manifest",
    "release",
    "stable_names",
    "write_manifest",
]
