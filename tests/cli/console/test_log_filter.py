"""Start-up noise is left out, and control signs are taken out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.cli.console.log_filter import is_startup_noise, sanitize

NOISE = (
    "2026-11-20 20:33:40.670183: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:477] Unable to register "
    "cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "E0000 00:00:1795206820.695419   12784 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting",
    "E0000 00:00:1795206820.703781   12784 cuda_blas.cc:1418] Unable to register cuBLAS factory: Attempting",
    "2026-11-20 20:33:44.887692: E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:152] failed call to "
    "cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
    "2026-11-20 20:33:44.887692: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate "
    "compiler flags.",
    "I0000 00:00:1795206820.695419   12784 gpu_device.cc:2022] Created device /job:localhost with 131072 MB memory",
    "W0000 00:00:1795206820.695419   12784 gpu_device.cc:2344] Cannot dlopen some GPU libraries.",
)
NEEDED = (
    "",
    "ValueError: bad luck",
    "I0131 12:00:00.123456 140704 train.py:12] the user's own log",
    "F0000 00:00:1795206820.695419   12784 cuda_dnn.cc:99] Check failed: no memory",
    "2026-11-20 20:33:44.887692: E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:9] failed to allocate 2G",
    "kungfu.errors.PeerFailure: in step 20: peer rank=1 died during gradients",
    "I like cuda_dnn.cc:12] as a name",
)


@pytest.mark.parametrize("line", [*NOISE, *NEEDED])
def test_start_up_noise_is_told_from_lines_that_a_person_may_need(line: str) -> None:
    assert is_startup_noise(line) == (line in NOISE)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("plain", "plain"),
        ("1/3\r2/3\r3/3", "3/3"),
        ("dos\r\n", "dos"),
        ("\x1b[1;31mred\x1b[0m and \x1b[2Jcleared", "red and cleared"),
        ("\x1b]0;title\x07text", "text"),
        ("bell\x07 back\x08", "bell back"),
        ("a\tb", "a       b"),
    ],
)
def test_a_line_stands_as_it_would_in_the_end(printed: str, shown: str) -> None:
    assert sanitize(printed, encoding="utf-8") == shown


@given(st.text())
def test_nothing_moves_the_cursor_or_breaks_the_encoding(text: str) -> None:
    shown = sanitize(text, encoding="latin-1")
    shown.encode("latin-1")
    assert not set(shown) & {"\x1b", "\r", "\n", "\b", "\x9b"}
