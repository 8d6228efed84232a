"""Values that may be registered: poured into an array and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.training.state.value_codec import codec_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(value=st.none() | st.text() | st.lists(JSON) | st.dictionaries(st.text(), JSON) | st.binary())
def test_what_json_knows_and_bytes_come_back_as_they_were(value):
    codec = codec_of("x", value, room_bytes=1 << 20)
    back = codec.value(codec.cast(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [True, -7, 0.1, math.inf, np.float32(0.1), np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 2)), 1 << 62],
)
def test_numbers_come_back_with_their_type(value):
    codec = codec_of("x", value, room_bytes=1)
    back = codec.value(codec.cast(value))
    assert type(back) is type(value)
    assert np.array_equal(back, value)


def test_an_array_that_comes_back_is_the_users_own():
    codec = codec_of("x", np.zeros(3), room_bytes=1)
    array = codec.cast(np.ones(3))
    codec.value(array)[0] = 5.0
    assert array.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "a"}, {"a": (1,)}, object(), np.array(["a"]), {1}, 1j, np.array([None]), [b"a"]]
)
def test_what_would_not_come_back_is_refused(value):
    with pytest.raises(UsageError, match="register a bool"):
        codec_of("x", value, room_bytes=100)


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        (1, 2.0, "was int when it was registered and is float"),
        (1, True, "and is bool"),
        (1.0, None, "and is JSON"),
        (np.zeros(2), np.zeros(3), r"was an array float64\[2\] .* is an array float64\[3\]"),
        (np.zeros(2), np.zeros(2, np.float32), "float32"),
        (b"a", "a", "was bytes"),
        ({}, (), r"gives \(\)"),
    ],
)
def test_a_value_that_changes_its_form_is_told(first, then, told):
    with pytest.raises(UsageError, match=told):
        codec_of("x", first, room_bytes=100).cast(then)


def test_a_whole_number_beyond_64_bits_is_refused():
    with pytest.raises(UsageError, match="64 bits"):
        codec_of("x", 1 << 63, room_bytes=1)


def test_a_value_that_outgrows_its_room_names_the_room_it_needs():
    codec = codec_of("log", "ab", room_bytes=10)
    with pytest.raises(UsageError, match=r"takes 12 bytes and has room for 10.*room_bytes=24"):
        codec.cast("0123456789")


def test_dicts_that_are_equal_make_equal_arrays():
    codec = codec_of("x", {"a": 1, "b": 2}, room_bytes=100)
    assert np.array_equal(codec.cast({"a": 1, "b": 2}), codec.cast({"b": 2, "a": 1}))
