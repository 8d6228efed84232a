"""Loaded by every interpreter of a job in which no text means anything: each is drawn anew from words that mislead."""

import ctypes
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kungfu.errors
from kungfu.native import builder
from kungfu.runtime.core import failure
from kungfu.runtime.core.cluster import cluster as state

runpy.run_path(str(Path(__file__).parents[1] / "lean" / "sitecustomize.py"))


def _said(_) -> str:
    import random  # here: this code also runs as that of functions of other modules

    accused = ("waited", "peers differ:", "rank=0", "peer 0", "is gone", "secret", "kf.attach()", "otter", "30 s")
    return " ".join(random.choices(accused, k=4))


_typed = builder._typed


def _misleading(functions: ctypes.CDLL, types: Mapping[str, Any]) -> ctypes.CDLL:
    if types is builder._OP_FUNCTIONS:
        functions.kungfu_make_texts_meaningless(1)
    return _typed(functions, types)


builder._typed = _misleading
kungfu.errors.KungfuError.__str__ = _said
for function in (failure.described, state.exit_in_words):  # others have imported them by name
    function.__code__ = _said.__code__
