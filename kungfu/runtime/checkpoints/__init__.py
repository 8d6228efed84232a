"""Checkpoints on disk: the manifest of each, and a folder in which one replaces the other without a gap."""
