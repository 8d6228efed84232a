"""Memory as one run of bytes, and its checksums."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.state.buffers import Buffers, digests
from kungfu.runtime.state.compare import sampled


def bytes_of(*contents: bytes) -> Buffers:
    return Buffers.of([np.frombuffer(bytearray(content), np.uint8) for content in contents])


def digest(content: bytes) -> int:
    return digests(bytes_of(content))[0]


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=6), st.data())
def test_a_part_is_read_and_written_across_variables(contents: list[bytes], data: st.DataObject) -> None:
    whole, buffers = b"".join(contents), bytes_of(*contents)
    assert buffers.total_bytes == len(whole)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert buffers.read(start, stop) == whole[start:stop]
    buffers.write(start, b"#" * (stop - start))
    assert buffers.read(0, len(whole)) == whole[:start] + b"#" * (stop - start) + whole[stop:]


def _twin(content: bytes) -> int:
    """The checksum as digest.cc describes it, in plain Python."""
    total = 0
    for start in range(0, max(len(content), 1), 1 << 20):
        block = _block_twin(content[start : start + (1 << 20)])
        total = (_folded(total ^ block, _END) + (total << 1 | 1)) & _MASK
    return total


_MASK, _END = (1 << 64) - 1, 0xCBBB9D5DC1059ED8


def _folded(a: int, b: int) -> int:
    return (a * b & _MASK) ^ (a * b >> 64)


def _block_twin(content: bytes) -> int:
    keys = [0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1]
    seeds = [0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179]
    lanes, padded = list(seeds), content + bytes(64 - len(content) % 64)
    for start in range(0, len(padded), 64):
        words = [int.from_bytes(padded[at : at + 8], "little") for at in range(start, start + 64, 8)]
        for i, lane in enumerate(lanes):
            lanes[i] = (_folded(words[2 * i] ^ lane, words[2 * i + 1] ^ keys[i]) + (lane << 1 | 1)) & _MASK
    total = _folded(len(content) ^ seeds[0], _END)
    for lane, key in zip(lanes, keys, strict=True):
        total = (_folded(total ^ lane, key) + total) & _MASK
    return total


@given(st.binary(max_size=300))
def test_the_checksum_is_the_one_that_is_written_down(content: bytes) -> None:
    assert digest(content) == _twin(content)


def test_the_checksum_of_several_blocks_by_several_threads_is_that_of_one() -> None:
    content = np.random.default_rng(5).bytes((1 << 20) + 77)
    assert digest(content) == _twin(content)
    many = [np.random.default_rng(seed).bytes(7 << 20) for seed in range(4)]
    assert digests(bytes_of(*many)) == [digest(one) for one in many]
    assert digest(many[0][1 << 20 : 2 << 20] + many[0][: 1 << 20]) != digest(many[0][: 2 << 20])


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_changed_bit_changes_the_checksum(content: bytes, data: st.DataObject) -> None:
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    assert digest(bytes(changed)) != digest(content)


@pytest.mark.parametrize("step", [1, 4, 8, 16, 64, 128])
def test_two_values_that_change_places_change_the_checksum(step: int) -> None:
    content = np.random.default_rng(step).bytes(4096)
    found = {digest(content)}
    for at in range(0, 4096 - 2 * step, 97):
        swapped = bytearray(content)
        swapped[at : at + 2 * step] = content[at + step : at + 2 * step] + content[at : at + step]
        found.add(digest(bytes(swapped)))
    assert len(found) == 1 + len(range(0, 4096 - 2 * step, 97))


def test_zeros_of_another_sign_are_seen_wherever_they_are() -> None:
    zeros, found = np.zeros(64, np.float32), set()
    pairs = [*combinations(range(64), 2), *((one, one) for one in range(64)), ()]
    for pair in pairs:
        zeros[list(pair)] = -0.0
        found.add(digest(zeros.tobytes()))
        zeros[list(pair)] = 0.0
    assert len(found) == len(pairs)


def test_runs_of_zeros_of_different_lengths_differ() -> None:
    assert len({digest(bytes(count)) for count in range(300)}) == 300


def test_a_sample_is_agreed_small_and_in_its_turns_everything() -> None:
    buffers = Buffers.of([np.arange(1_000_003, dtype=np.uint8), np.arange(100, dtype=np.uint8)])
    base, seen = buffers.table[0, 0], []
    for turn in range(64):
        (address, size), small = sampled(buffers, turn).table
        assert size <= 1_000_003 // 32 + 1
        assert small.tolist() == buffers.table[1].tolist()
        seen.append((int(address - base), int(address - base + size)))
    assert seen[:32] == seen[32:]
    assert all(first[1] == second[0] for first, second in pairwise(seen[:32]))
    assert (seen[0][0], seen[31][1]) == (0, 1_000_003)
