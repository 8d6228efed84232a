"""TensorFlow's start-up noise: what its libraries print in every healthy process, and nobody can act upon.

It is kept in the log files, and hidden from the screen and from the last output of a peer that failed. The list names
sources, not levels: an error of the user's own program is never taken for noise.
"""

from __future__ import annotations

import re

__all__ = ["is_noise"]

# `2026-01-31 12:00:00.123456: E external/...` and `E0000 00:00:1795206820.695419   12784 cuda_dnn.cc:8310]`.
_STAMP = r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] |[IWEF]\d{4} \d\d:\d\d:\d+(?:\.\d+)?\s+\d+ )"
_SOURCES = (
    r"cuda_(?:dnn|blas|fft|driver|executor|platform|diagnostics)\.cc",
    r"(?:\S*/)?stream_executor/cuda/\S+\.cc",
    r"(?:\S*/)?cpu_feature_guard\.cc",
    r"(?:\S*/)?cudart_stub\.cc",
    r"(?:\S*/)?dso_loader\.cc",
    r"(?:\S*/)?py_utils\.cc",
    r"(?:\S*/)?gpu_(?:device|process_state)\.cc",
    r"(?:\S*/)?port\.cc",
    r"(?:\S*/)?device_compiler\.h",
    r"(?:\S*/)?service\.cc",
)
_NOISE = re.compile(
    rf"^{_STAMP}(?:external/local_(?:xla|tsl)/)?(?:{'|'.join(_SOURCES)}):\d+\]"
    r"|^WARNING: All log messages before absl::InitializeLog\(\) (?:is|are) called are written to STDERR"
    r"|^To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\."
    r"|^Skipping registering GPU devices\.\.\.$"
)


def is_noise(text: str) -> bool:
    """Whether a line is TensorFlow's start-up noise.

    >>> is_noise("E0000 00:00:1795206820.695419   12784 cuda_dnn.cc:8310] Unable to register cuDNN factory")
    True
    >>> is_noise("ValueError: my cuda_dnn.cc is broken")
    False
    """
    return _NOISE.match(text) is not None
