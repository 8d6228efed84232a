"""The manifest of a checkpoint, and the misfits that it reports."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.checkpoints.manifest import Manifest, VariableEntry, mismatches, read_manifest, write_manifest
from kungfu.runtime.core.request import Asked, Resize, SetBatch, SetNumber
from kungfu.runtime.core.size_limits import Hold, SizeLimits
from kungfu.runtime.core.terms import Ramp, Terms


def test_a_manifest_is_read_as_it_was_written_but_for_terms_about_peers(tmp_path):
    ramp = Ramp(0.1, 0.2, since=40, over=4.0)
    lasting = {"keep": "global_batch_size", "max_global_batch": 96, "ramp": ramp}
    lasting |= {"policy_share": 16.0, "base_batch": 32, "base_size": 1, "average_every": 8}
    held = {"sizes": SizeLimits(maximum=4, hold=Hold(3), revision=2), "held_rules": ("rule",)}
    held |= {"awaiting_size": Asked(Resize(5, batch=SetBatch(512.0)), "grow"), "variables": (SetNumber("heat", 0.5),)}
    terms = Terms(64, 32.0, target_size=5, refused_size=7, stopped=True, **held, **lasting)
    entry = VariableEntry("model/dense/kernel", (2, 3), "float32", 17)
    manifest = Manifest(12, 2, 48, terms, (entry,), {"samples": 100, "seed": 3}, {"state.index": 3})
    (tmp_path / "state.index").write_text("abc")
    write_manifest(manifest, tmp_path)
    read = read_manifest(tmp_path)
    assert read.terms == Terms(64, **lasting)
    assert read.variables == (entry,)
    assert (read.step, read.size, read.batch, read.data) == (12, 2, 48, {"samples": 100, "seed": 3})


FORMAT_1 = Path(__file__).with_name("format_1.json")  # written when no type described its fields (commit 76989fd)


def format_1(**changed: object) -> str:
    """The text of that manifest with other fields."""
    return json.dumps({**json.loads(FORMAT_1.read_text()), **changed})


def test_a_manifest_from_before_it_had_types_is_read(tmp_path):
    (tmp_path / "state.index").write_text("abc")
    (tmp_path / "kungfu.json").write_bytes(FORMAT_1.read_bytes())
    read = read_manifest(tmp_path)
    assert read.terms == Terms(
        64, keep="global_batch_size", max_global_batch=96, ramp=Ramp(0.1, math.inf, since=40, over=4.0, unit="samples"),
        policy_share=16.0, base_batch=32, base_size=1,
    )  # fmt: skip
    assert read.variables == (VariableEntry("model/dense/kernel", (2, 3), "float32", 17),)
    assert (read.step, read.size, read.batch, read.phase) == (12, 2, 48, 2)
    assert (read.data, read.files) == ({"samples": 100, "seed": 3}, {"state.index": 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *[(text, "no whole checkpoint") for text in ("", "{", "[]", "{}", '{"format": 1}', format_1(terms=3))],
        (format_1(format=2), "another version of kungfu, in format 2, and this one reads format 1"),
        (format_1(step="12"), r"no whole checkpoint.*Expected `int`, got `str` - at `\$\.step`"),
        (format_1(colour=1), "no whole checkpoint.*unknown field `colour`"),
        (format_1(terms={"colour": 1}), "no whole checkpoint.*colour is no term of format 1"),
    ],
)
def test_what_is_no_manifest_or_one_of_another_format_is_refused(tmp_path, text, message):
    (tmp_path / "kungfu.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_manifest(tmp_path)


def entries(*names: str) -> list[VariableEntry]:
    return [VariableEntry(name, (2,), "float32") for name in names]


@pytest.mark.parametrize(
    ("there", "here", "reported"),
    [
        (entries("model/sequential_4/dense_9/bias"), entries("model/sequential/dense/bias"), []),
        (entries("model/a/bias", "policy/x"), entries("model/a/bias"), ["it holds policy/x, which is not here"]),
        (entries("model/a/bias"), entries("model/a/bias", "registered/best"), ["registered/best is not in it"]),
        (entries("model/d/b", "model/d_1/b"), entries("model/d_6/b", "model/d_7/b"), []),
        (entries("optimizer/linear_dense_3_bias_v"), entries("optimizer/linear_dense_bias_v"), []),
        (entries("model/d/b"), entries("model/d/b", "model/d_1/b"), ["model/d_1/b is not in it"]),
        (
            [VariableEntry("model/a/bias", (3,), "float64")],
            entries("model/a/bias"),
            ["model/a/bias is float32[2] here and float64[3] there"],
        ),
    ],
)
def test_misfits_are_reported_by_name(there, here, reported):
    assert list(mismatches(there, here)) == reported
