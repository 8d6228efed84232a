"""A plan as bytecode of a whole step, run by ctypes for all peers of a cluster side by side, without TensorFlow."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kungfu import native
from kungfu.compiler.assembler import whole_step
from kungfu.compiler.compiled_policies import CompiledPolicies, Outcome
from kungfu.compiler.replay.numpy_backend import PerPeer
from kungfu.errors import InternalError, UsageError
from kungfu.signal.operation import DType, SignalType

_WORD_BYTES = 8
_MESSAGE_BYTES = 200


class NativeProgram:
    """The bytecode of a plan in the native library, in which each number is a word of 8 bytes, whatever its type.

    Raises:
        UsageError: There is no compiler, and no previously built library.
    """

    def __init__(self, plan: CompiledPolicies) -> None:
        bytecode = whole_step(plan)
        self._functions = native.load_state()
        wrong = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self._opened = self._functions.kungfu_bytecode_open(bytecode.text.encode(), wrong, _MESSAGE_BYTES)
        if self._opened is None:
            raise InternalError(wrong.value.decode())
        weakref.finalize(self, self._functions.kungfu_bytecode_close, self._opened)
        self._inputs, self._results = bytecode.inputs, bytecode.results
        self._states: list[SignalType] = [one.type for fold in plan.folds for one in fold.recurrence.updates]
        self._lengths = np.array([one.shape[0] if one.shape else -1 for one in self._states], np.int64)
        self._entries = np.zeros(len(self._results), np.int64)

    def step(self, sources: Mapping[str, PerPeer], states: Any, *, size: int) -> Outcome:
        """One step of a cluster, from each peer's sources and gradient reductions.

        Updates ``states`` in place: the words of the folds' states, a row for each peer."""
        inputs = self._loaded(sources, size)
        addresses = (one.ctypes.data for one in (inputs, self._lengths, states, self._entries))
        found = self._functions.kungfu_bytecode_run(self._opened, size, *addresses)
        if not found:
            raise UsageError(f"a step of {size} peers needs more memory than there is: a number of the record is wrong")
        given = np.frombuffer(ctypes.string_at(found, int(self._entries.sum()) * _WORD_BYTES), np.int64)
        outcome = Outcome(*_vectors(given, self._results, self._entries.tolist()))
        return outcome._replace(masks=outcome.masks.reshape(-1, size), fractions=outcome.fractions.reshape(-1, size))

    def words(self, fields: Sequence[PerPeer], *, size: int) -> Any:
        """The words of these fields of the folds' states, a row for each peer."""
        lengths = np.abs(self._lengths)
        words = np.zeros((size, lengths.sum()), np.int64)
        columns = np.split(words, np.cumsum(lengths)[:-1], axis=1) if fields else []
        for column, field, type in zip(columns, fields, self._states, strict=True):
            _numbers(column, type.dtype)[...] = np.reshape(field, column.shape)
        return words

    def fields(self, words: Any) -> Iterator[PerPeer]:
        """The fields of the folds' states stored in these words: one array for each peer."""
        at = 0
        for type, length in zip(self._states, np.abs(self._lengths).tolist(), strict=True):
            found = _numbers(words[:, at : at + length], type.dtype).copy()
            yield tuple(found if type.shape else found[:, 0])
            at += length

    def _loaded(self, sources: Mapping[str, PerPeer], size: int) -> Any:
        words = np.zeros((size, len(self._inputs)), np.int64)
        for index, (name, dtype) in enumerate(self._inputs.items()):
            column, values = _numbers(words[:, index : index + 1], dtype)[:, 0], sources[name]
            with np.errstate(all="ignore"):
                try:
                    column[:] = values
                except (ValueError, OverflowError, TypeError):
                    # The dtype cannot represent a number: cast it.
                    column[:] = [np.asarray(one).astype(dtype) for one in values]
        return words


def _numbers(words: Any, dtype: DType) -> Any:
    """A view of the numbers stored in words, in the last axis."""
    kind = np.dtype(dtype)
    return words.view(kind)[..., :: _WORD_BYTES // kind.itemsize]


def _vectors(words: Any, dtypes: Sequence[DType], entries: Sequence[int]) -> Iterator[Any]:
    at = 0
    for dtype, count in zip(dtypes, entries, strict=True):
        yield _numbers(words[at : at + count], dtype)
        at += count
