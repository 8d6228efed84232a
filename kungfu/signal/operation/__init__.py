"""What a map may compute: operations, each with a type rule and two twins.

An operation is a value: its name, the rule that types it, its NumPy twin, and the place of its TensorFlow twin. The
latter is a dotted name (``tf.`` is TensorFlow, ``twins.`` is ``kungfu.ops.tensorflow_twins``) and not a function, so
that a policy can be checked and explained without importing TensorFlow. The two twins must agree to float tolerance.

The operators of Python, the choice ``where`` and the index stand here, because signals themselves are written with
them; the rest of the vocabulary is in ``kungfu.ops``, one line an entry.
"""

from kungfu.signal.operation.operation import OPERATORS, Operation
from kungfu.signal.operation.rules import Rule, Typing, arithmetic, fractional, nest_reduction, predicate
from kungfu.signal.operation.type import NEST, SCALAR, VECTOR, DType, Shape, SignalType

__all__ = [
    "NEST",
    "OPERATORS",
    "SCALAR",
    "VECTOR",
    "DType",
    "Operation",
    "Rule",
    "Shape",
    "SignalType",
    "Typing",
    "arithmetic",
    "fractional",
    "nest_reduction",
    "predicate",
]
