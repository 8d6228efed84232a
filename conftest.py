"""Loads the package before pytest collects from it: `kungfu.policy_definition` is the decorator, and must stay it.

The gate draws the same examples each time, so that it says something about the change and nothing about luck; with
``KUNGFU_RANDOM=1``, as `make soak` runs it, hypothesis looks for new ones.
"""

import os

from hypothesis import settings

import kungfu  # noqa: F401 - loaded for its names

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("KUNGFU_RANDOM") else "gate")
