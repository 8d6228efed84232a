"""What one peer can give another, and how an object takes it."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict, deque
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.plain_values import is_plain, pack, plain_attributes, put_attributes, unpack


class Word(StrEnum):
    ONE = "one"


def test_plain_values_arrive_as_they_were():
    value = {
        "nothing": None, "flag": True, "number": 1.5, "text": "é", "none": float("nan"), "list": [1, (2, [3])],
        "array": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.float64(2.0),
        "dict": {"dict": [], "array": {}}, 3: {1, 2}, (1, "two"): frozenset({"a"}), "bytes": b"\0\xff",
        "complex": 1 - 2j, "large": [2**63, -(2**80)], "path": "\udcff", "nested": ((), {}),
        "big": np.arange(3, dtype=">i2"), "empty": np.zeros((2, 0)), "smallest": -(2**63), "word": Word.ONE,
    }  # fmt: skip
    found = unpack(pack(value))
    assert np.isnan(found.pop("none"))
    value.pop("none")
    for name in ("array", "big", "empty"):
        assert found[name].dtype == value[name].dtype
        np.testing.assert_array_equal(found.pop(name), value.pop(name))
    assert found == value
    assert isinstance(found["scalar"], np.float64)
    assert type(found["word"]) is str


OBJECTS = msgspec.msgpack.encode(msgspec.msgpack.Ext(0, msgspec.msgpack.encode(("|O", (1,), 0))))
OF_ADDRESSES = len(OBJECTS).to_bytes(8, "little") + OBJECTS + (0x41414141).to_bytes(8, "little")


EARLIER = [b'{"dict": [["callbacks", null]]}', b"PK\x03\x04-" + bytes(100)]  # began as JSON, and as NumPy's archive


@pytest.mark.parametrize(
    "content", [b"", b"7", pack([1])[:-1], (1 << 60).to_bytes(8, "little") + b"\x01", OF_ADDRESSES, *EARLIER]
)
def test_what_was_not_packed_by_this_version_is_refused(content):
    message = "not as this version of kungfu packs it .*: resume a checkpoint with the version that wrote it"
    with pytest.raises(UsageError, match=message):
        unpack(content)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "bool"])
def test_tensors_of_every_type_arrive_bit_for_bit(dtype):
    value = [tf.cast([0, 1, 2], dtype), tf.cast([[3.0]], dtype).numpy()]
    tensor, array = unpack(pack(value))
    assert tensor.dtype == array.dtype.name == dtype
    assert tensor.numpy().tobytes() == value[0].numpy().tobytes()
    assert array.tobytes() == value[1].tobytes()


@pytest.mark.parametrize("value", [object(), open, np.array(["a"]), tf.constant("a"), [tf.Variable(1)], io.BytesIO()])
def test_other_values_are_not_plain(value):
    assert not is_plain(value)
    assert not is_plain({"a": [value]})


def test_what_an_object_has_is_filled_and_what_is_open_stays():
    def holder(one: float) -> Any:
        return SimpleNamespace(
            number=one, variable=tf.Variable(one), weight=keras.Variable(one), listed=[one], by_name={"a": one},
            counted=Counter(a=int(one)), missing=defaultdict(list, a=[one]), last=deque([one], maxlen=3),
            ordered=OrderedDict(a=one), seen={one}, tensor=tf.constant(one), open=object(),
        )  # fmt: skip

    giver, taker = holder(2.0), holder(1.0)
    before = dict(vars(taker))
    put_attributes(taker, unpack(pack(plain_attributes(giver, without=()))))
    filled = {name for name, value in vars(taker).items() if value is before[name]}
    assert filled == vars(taker).keys() - {"number", "tensor"}
    for name, value in vars(giver).items():
        if name != "open":
            assert type(getattr(taker, name)) is type(value)
            assert np.all(plain_attributes(taker, without=())[name] == plain_attributes(giver, without=())[name])
    assert taker.last.maxlen == 3
    assert taker.missing["b"] == []


def test_a_list_that_holds_something_open_is_left_alone():
    opened = [object()]
    taker = SimpleNamespace(listed=opened)
    put_attributes(taker, {"listed": []})
    assert taker.listed == opened
