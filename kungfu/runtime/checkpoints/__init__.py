"""Checkpoints on disk: their manifests, and a folder in which a new checkpoint replaces an old one atomically."""
