"""The operations that a map may compute, each with a type rule and two kernels.

An operation is a value: its name, the rule that types it, its NumPy kernel, and the name of its TensorFlow kernel. The
latter is dotted (``tf.`` is TensorFlow, ``kernels.`` is ``kungfu.ops.tensorflow_kernels``) and not a function, so that
a policy can be checked and explained without importing TensorFlow. The two kernels must agree to float tolerance.

The operators of Python, the choice ``where`` and the index stand here, because signals themselves are written with
them; the rest of the vocabulary is in ``kungfu.ops``, one line an entry.
"""

from kungfu.signal.operation.operation import OPERATORS, Operation
from kungfu.signal.operation.rules import TypeRule, Typing, arithmetic, fractional, nest_reduction, predicate
from kungfu.signal.operation.type import NEST, SCALAR, VECTOR, DType, Shape, SignalType

__all__ = [
    "NEST",
    "OPERATORS",
    "SCALAR",
    "VECTOR",
    "DType",
    "Operation",
    "Shape",
    "SignalType",
    "TypeRule",
    "Typing",
    "arithmetic",
    "fractional",
    "nest_reduction",
    "predicate",
]
