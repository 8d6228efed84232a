"""Specifications of searches in YAML: typed, with units, and with a schema."""
