"""The description of this peer's program, for the comparison by `kungfu.runtime.core.program_identity`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu import __version__
from kungfu.compiler import CompiledPolicies
from kungfu.compiler.serialize import outline
from kungfu.runtime.api import Description, ProgramPart
from kungfu.training.state.program_entries import compile_entries, model_entries, optimizer_entries
from kungfu.training.state.registry import Registry

_LIBRARIES = {"TensorFlow": tf, "Keras": keras, "NumPy": np}
# The processor features by which TensorFlow selects its kernels; the first available one counts.
_INSTRUCTIONS = ("avx512f", "avx2", "avx", "sse4_2")

_SEEDED = (
    "give what draws, shuffles or splits them a seed, by train_test_split(..., random_state=0), by "
    "np.random.default_rng(0), or by keras.utils.set_random_seed() at the top"
)
_DATA = "data of training.batches()"
_DATA_SECTIONS = {
    "first_batch": "data that every peer reads, and has to read alike: give what shuffles them a seed, by "
    "shuffle(n, seed=0) or by keras.utils.set_random_seed() at the top, and put layers that change samples at random "
    "into the model, not into map()",
    "targets": "order of the samples in the arrays of model.fit() or training.batches(), by a checksum of the targets, "
    f"which peers share by index: {_SEEDED}",
    "weights": f"weights of the samples in the arrays of model.fit(), by a checksum of sample_weight: {_SEEDED}",
    "validation": "validation data of model.fit(), by a checksum of their targets and weights, of which each peer does "
    f"a part: {_SEEDED}; of a tf.data.Dataset give shuffle() a seed, or leave it out, as the order does not matter",
}


def describe(
    plan: CompiledPolicies,
    model: Any,
    optimizers: Sequence[Any],
    registry: Registry,
    data: Mapping[str, int],
    *,
    facts: Sequence[str] = (),
    remembered: Sequence[str] = (),
) -> Description:
    """Describes everything that must be equal on all peers of a job: versions, plan, configs, variables, values, data.

    Args:
        plan: The compiled policies. Hooks are compared by module and qualified name, not by code.
        model: A variable is compared by index, shape, dtype and trainability, not by its name, which Keras may number
            differently in another process. See `program_entries` for the layers and the arguments of ``compile``.
        data: The number of samples, the seed, and the checksum of the first batch of data that every peer reads.
        facts: Further facts as text, such as the arguments of ``fit``.
        remembered: The program's declarations about variables in which layers keep statistics of their inputs.
    """
    return Description.of(
        [
            ProgramPart.of("versions", f"kungfu {__version__}"),
            *(ProgramPart.of("versions", f"{name} {one.__version__}") for name, one in _LIBRARIES.items()),
            *(ProgramPart.of("policies", shown, text) for shown, text in outline(plan)),
            *_model(model),
            *_optimizers(optimizers),
            *(ProgramPart.of("registered values", one) for one in registry.described()),
            *(ProgramPart.of(_DATA_SECTIONS.get(name, _DATA), f"{name} {value}") for name, value in data.items()),
            *(ProgramPart.of("the call of fit", one) for one in facts),
            *(ProgramPart.of("compile()", *one) for one in compile_entries(model)),
            *(ProgramPart.of("aggregation of layers' variables", one) for one in remembered),
        ]
    )


def _model(model: Any) -> Iterator[ProgramPart]:
    for entry in model_entries(model):
        yield ProgramPart.of("model", *entry)
    trained = {id(one) for one in model.trainable_variables}
    for index, variable in enumerate(model.variables):
        is_trained = "trained" if id(variable) in trained else "not trained"
        yield _variable("model", index, variable, is_trained)


def _optimizers(optimizers: Sequence[Any]) -> Iterator[ProgramPart]:
    for number, optimizer in enumerate(optimizers):
        kind = type(optimizer).__name__
        yield ProgramPart.of("optimizers", kind, f"{number} {kind}")
        for entry in optimizer_entries(optimizer, number=number):
            yield ProgramPart.of("optimizers", *entry)
        for index, variable in enumerate(optimizer.variables):
            yield _variable("optimizers", index, variable, f"of {kind}", where=f"{number} ")


def _variable(section: str, index: int, variable: Any, what: str, *, where: str = "") -> ProgramPart:
    """The part of the description for one variable: errors show the variable's name, comparisons use the index."""
    name = getattr(variable, "path", None) or variable.name
    kind = f"{tf.as_dtype(variable.dtype).name}{tuple(variable.shape)}, {what}"
    return ProgramPart.of(section, f"variable {index} {name}: {kind}", f"{where}{index} {kind}")


def machine_in_words(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The properties of this peer's machine that affect results of arithmetic: threads per op, and the processor."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    threads = threads or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0) or len(os.sched_getaffinity(0))
    return f"{threads} thread{'' if threads == 1 else 's'}, {_processor(cpuinfo)}"


def _processor(cpuinfo: Path) -> str:
    """The model of the first processor, and the best instruction set of this processor that TensorFlow uses."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines() if cpuinfo.is_file() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name") or fields.get("CPU part") or platform.machine()
    flags = fields.get("flags", "").split()
    widest = next((one for one in _INSTRUCTIONS if one in flags), "")
    return f"{model} ({widest})" if widest else model
