"""Loads the package before pytest collects from it: `kungfu.policy` is the decorator, and must stay it."""

import kungfu  # noqa: F401 - loaded for its names
