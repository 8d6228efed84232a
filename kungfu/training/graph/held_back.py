"""What a step assigns behind its average waits for the average: a step in which peers are lost must have moved nothing.

TensorFlow runs an op as soon as its inputs are there. A count of steps needs none of the means, and would be one ahead
when the message of the step fails and the step is done again, on some peers and not on others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["held_back"]


def held_back(function: Callable[..., Any], *, means: Callable[[], Sequence[Any]]) -> Callable[..., Any]:
    """The function, made so that no op that it creates behind ``means()`` touches a variable before they are there.

    ``means`` is asked when the function has been traced: the tensors that the average gave. In a graph of the program's
    own inside of the function they hold back what uses them, and no more.
    """

    def traced(*args: Any, **kwargs: Any) -> Any:
        returned = function(*args, **kwargs)
        _hold_back(means)
        return returned

    return traced


@tf.autograph.experimental.do_not_convert
def _hold_back(means: Callable[[], Sequence[Any]]) -> None:
    if tf.executing_eagerly():  # op by op, in the program's order
        return
    graph = tf.compat.v1.get_default_graph()
    awaited = [mean.op for mean in means() if mean.graph is graph]
    if not awaited:
        return
    operations = graph.get_operations()
    last = max(operations.index(op) for op in awaited)
    for op in operations[last + 1 :]:
        if op.op_def.is_stateful or any(given.dtype == tf.resource for given in op.inputs):
            op._add_control_inputs(awaited)
