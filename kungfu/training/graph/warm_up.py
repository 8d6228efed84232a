"""The first run of a compiled step: on a copy of the state, so that joining costs the others nothing.

Memory, kernels and libraries are touched once before the peer says that it is ready; then every variable that the step
knows of, the user's own included, is what it was before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kungfu.runtime.attachment.protocol import Attachment
from kungfu.training.graph.handles import read, write
from kungfu.training.graph.step import WHOLE, CompiledStep

__all__ = ["warmed_up"]


def warmed_up(compiled: CompiledStep, attachment: Attachment, tensors: Sequence[Any]) -> None:
    """Runs the step once, alone, and gives every variable back the memory that it had.

    Nothing is copied but what the step writes: a variable's first write goes to new memory while the old one is held
    here. So a state that is not trained costs nothing, and a trained one is there twice until this returns.
    """
    attachment.open(rank=0, size=1, job="warm-up", view=0, deadline_s=60.0, secret=b"alone", addresses=[""])
    handles = compiled.handles
    before = read(handles)
    try:
        compiled(WHOLE, tensors)
    finally:
        write(handles, before)
        attachment.close()
