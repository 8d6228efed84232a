"""The operations of maps, each with a type rule and two kernels.

The TensorFlow kernel is given by a dotted name (``tf.`` is TensorFlow, ``kernels.`` is ``.tensorflow_kernels``) instead
of a function, so that a policy can be checked and explained without importing TensorFlow. The two kernels must agree to
float tolerance.
"""

from kungfu.signal.operation.rules import NEST, SCALAR, VECTOR, DType, Shape, SignalType
from kungfu.signal.operation.vocabulary import VOCABULARY, Operation

__all__ = ["NEST", "SCALAR", "VECTOR", "VOCABULARY", "DType", "Operation", "Shape", "SignalType"]
