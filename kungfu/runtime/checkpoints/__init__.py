"""Checkpoints on disk: what each says of itself, and a folder in which one replaces the other without a gap."""

from kungfu.runtime.checkpoints.folder import Folder, find, has_step, published
from kungfu.runtime.checkpoints.manifest import Entry, Manifest, misfits, read_manifest, stable_names, write_manifest

__all__ = [
    "Entry",
    "Folder",
    "Manifest",
    "find",
    "has_step",
    "misfits",
    "published",
    "read_manifest",
    "stable_names",
    "write_manifest",
]
