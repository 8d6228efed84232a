"""Filters peers' output for a shared screen: removes start-up noise and control characters.

In every healthy process, TensorFlow's libraries print messages that need no action. The log files keep them; the screen
and the last output of a failed peer omit them. Noise means information and warnings from C++ sources, and C++ errors
that are due to a missing GPU. Fatal messages and messages from Python are never noise.
"""

from __future__ import annotations

import re


def _stamped(levels: str) -> str:
    """The pattern of time stamps: ``2026-01-31 12:00:00.123456: E `` or ``E0000 00:00:1795206820.695419   12784 ``."""
    return rf"(?:\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: {levels} |{levels}\d{{4}} \d\d:\d\d:[\d.]+\s+\d+ )"


_NOISE = re.compile(
    rf"^{_stamped('[IW]')}\S+\.(?:cc|h):\d+\]"
    rf"|^{_stamped('E')}\S*cuda_(?:dnn|blas|fft)\.cc:\d+\] Unable to register"
    rf"|^{_stamped('E')}\S*cuda_(?:driver|platform|executor)\.cc:\d+\] failed call to cuInit"
    rf"|^{_stamped('E')}\S*cuda_diagnostics\.cc:\d+\]"
    r"|^WARNING: All log messages before absl::InitializeLog\(\) (?:is|are) called are written to STDERR"
    r"|^To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\."
    r"|^Skipping registering GPU devices\.\.\.$"
)


def is_startup_noise(text: str) -> bool:
    """True if a line is TensorFlow's start-up noise.

    >>> is_startup_noise("E0000 00:00:1795206820.695419   12784 cuda_dnn.cc:8310] Unable to register cuDNN factory")
    True
    >>> is_startup_noise("ValueError: my cuda_dnn.cc is broken")
    False
    """
    return _NOISE.match(text) is not None


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def sanitize(text: str, *, encoding: str) -> str:
    """Converts a line to the text that a terminal finally shows, with "?" for characters that `encoding` lacks.

    Only the last state of a progress bar that overwrites itself remains. Colours and control characters are removed.

    >>> sanitize("10%\\r100% done", encoding="utf-8"), sanitize("\\x1b[31mred\\x1b[0m", encoding="utf-8")
    ('100% done', 'red')
    >>> sanitize("3 → 4", encoding="ascii")
    '3 ? 4'
    """
    # The text after the last carriage return is what a terminal finally shows.
    kept = text.rstrip("\r\n").rsplit("\r", 1)[-1]
    bare = _CONTROLS.sub("", _ESCAPES.sub("", kept)).expandtabs()
    return bare.encode(encoding, "replace").decode(encoding)
