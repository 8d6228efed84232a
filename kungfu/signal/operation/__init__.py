"""The operations that a map may compute, each with a type rule and two kernels.

An operation is a value: its name, the rule that types it, its NumPy kernel, and the name of its TensorFlow kernel. The
latter is dotted (``tf.`` is TensorFlow, ``kernels.`` is ``.tensorflow_kernels``) and not a function, so that a policy
can be checked and explained without importing TensorFlow. The two kernels must agree to float tolerance.
"""

from kungfu.signal.operation.operation import Operation
from kungfu.signal.operation.rules import TypeRule, Typing, arithmetic
from kungfu.signal.operation.type import NEST, SCALAR, VECTOR, DType, Shape, SignalType
from kungfu.signal.operation.vocabulary import VOCABULARY

__all__ = [
    "NEST",
    "SCALAR",
    "VECTOR",
    "VOCABULARY",
    "DType",
    "Operation",
    "Shape",
    "SignalType",
    "TypeRule",
    "Typing",
    "arithmetic",
]
