"""Where in the user's program a signal was made, for messages that point there."""

from __future__ import annotations

import os
import sys
from types import FrameType

__all__ = ["origin_of_caller"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_POLICIES = os.path.join(_PACKAGE, "policies") + os.sep  # prebuilt policies are written like a user's


def origin_of_caller() -> str:
    """``file:line`` of the innermost frame outside this package, or an empty string where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        # "<string>" is the code that dataclasses write for themselves.
        if path != "<string>" and (not path.startswith(_PACKAGE) or path.startswith(_POLICIES)):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
