"""Finds the variables to which a step assigns values that depend on this peer's samples, from the step's graph.

A value depends on the samples if it is computed from the batch or the batch's size, from a random draw, or from a
variable that was assigned a dependent value. Dependence is followed through branches, loops and functions that the step
calls. The sums of a message are equal on all peers, whatever was sent. The walk over the graph is repeated until it
finds nothing new, since a variable may be read before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

import tensorflow as tf

from kungfu.framework_internals import function_graph, functions_called, resources_written

_DRAWN = re.compile(r"\w*(Random|Rng|Multinomial|TruncatedNormal|StatefulUniform|StatefulStandardNormal)\w*")
_SUMMED = re.compile(r"KungfuAllReduce|Horovod\w*")
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_CHOICES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})  # the first input selects the branch
_LOOPS = frozenset({"While", "StatelessWhile"})


class SampleFlow:
    """The flow of this peer's samples through the graph of a traced step.

    Args:
        agreed: Tensors that are equal on all peers, for example the means of gradients.
        equal: The ids of the handles of variables that are equal on all peers, whatever is assigned to them.
        passed_over: Operations of the graph whose writes are ignored, for example those of optimizers.
    """

    def __init__(
        self,
        graph: Any,
        samples: Iterable[Any],
        *,
        agreed: Iterable[Any] = (),
        equal: Collection[int] = (),
        passed_over: Collection[Any] = (),
    ) -> None:
        self._graph, self._equal = graph, equal
        self._agreed = {id(one) for one in agreed}
        self._own = {id(one) for one in samples}  # ids of tensors that depend on this peer's samples
        # For each handle inside a graph (by id), the ids of the outer handles that it may represent.
        self._variables = {id(own): {id(one)} for one, own in graph.captures if one.dtype == tf.resource}
        self._called: dict[str, Any] = {}  # graphs of functions, by name
        self.written: dict[int, Any] = {}  # an operation that writes a dependent value, by the variable's handle id
        self._is_new = True
        while self._is_new:
            self._is_new = False
            for operation in graph.get_operations():
                if operation not in passed_over:
                    self._visit(graph, operation, under_own=False)

    def last_written(self, handle: Any) -> int:
        """The index of the step's last operation that may write a variable; -1 if there is none."""
        return max(
            (
                place
                for place, one in enumerate(self._graph.get_operations())
                if any(given.dtype == tf.resource and id(handle) in self._roots(given) for given in one.inputs)
                and any(id(handle) in self._roots(written) for written in resources_written(one))
            ),
            default=-1,
        )

    def _visit(self, graph: Any, operation: Any, *, under_own: bool) -> None:
        """Follows dependence on samples through an operation, in a dependent branch or loop if ``under_own``."""
        if operation.type in _CALLS | _CHOICES | _LOOPS:
            self._visit_call(graph, operation, under_own=under_own)
            return
        is_own = any(id(one) in self._own for one in operation.inputs)
        handles = [one for one in operation.inputs if one.dtype == tf.resource]
        is_own = is_own or any(one in self.written for handle in handles for one in self._roots(handle))
        is_drawn = _DRAWN.fullmatch(operation.type) is not None
        # A random generator advances equally on all peers, whatever is drawn from it.
        if handles and (is_own or under_own) and not is_drawn:
            for handle in resources_written(operation):
                self._write(handle, operation)
        if not _SUMMED.fullmatch(operation.type):
            for output in operation.outputs:
                self._flow(output, is_own=is_own or is_drawn, handles=handles)

    def _visit_call(self, graph: Any, operation: Any, *, under_own: bool) -> None:
        first = 1 if operation.type in _CHOICES else 0
        chosen = any(id(one) in self._own for one in operation.inputs[:first])
        called = self._functions(graph, operation)
        loops = operation.type in _LOOPS
        for inside in called:
            self._enter(inside, operation.inputs[first:])
        if loops:  # the results of one iteration are the inputs of the next
            body, condition = called
            for one, other in ((condition, body), (body, body)):
                self._enter(one, other.outputs)
            chosen = any(id(one) in self._own for one in condition.outputs)
        for inside in called:
            for one in inside.get_operations():
                self._visit(inside, one, under_own=under_own or chosen)
        results = called[:1] if loops else called
        for place, output in enumerate(operation.outputs):
            given = [inside.outputs[place] for inside in results if place < len(inside.outputs)]
            if loops:
                given.append(operation.inputs[place])
            is_own = chosen or any(id(one) in self._own for one in given)
            self._flow(output, is_own=is_own, handles=[one for one in given if one.dtype == tf.resource])

    def _functions(self, graph: Any, operation: Any) -> list[Any]:
        """The graphs that an operation calls; for a loop its body, then its condition."""
        names = functions_called(operation)
        for name in names:
            if name not in self._called:
                self._called[name] = function_graph(graph, name)
        return [self._called[name] for name in names]

    def _enter(self, inside: Any, given: Iterable[Any]) -> None:
        """Marks the inputs of a called function as dependent on this peer's samples, where the passed arguments are."""
        for outer, inner in zip(given, inside.inputs, strict=False):
            self._flow(inner, is_own=id(outer) in self._own, handles=[outer] if outer.dtype == tf.resource else [])

    def _flow(self, tensor: Any, *, is_own: bool, handles: Iterable[Any]) -> None:
        if tensor.dtype == tf.resource:
            known = self._variables.setdefault(id(tensor), set())
            more = {one for handle in handles for one in self._roots(handle)} - known
            known |= more
            self._is_new = self._is_new or bool(more)
        elif is_own and id(tensor) not in self._own and id(tensor) not in self._agreed:
            self._own.add(id(tensor))
            self._is_new = True

    def _write(self, handle: Any, operation: Any) -> None:
        for one in self._roots(handle) - self.written.keys():
            if one not in self._equal:
                self.written[one] = operation
                self._is_new = True

    def _roots(self, handle: Any) -> set[int]:
        return self._variables.get(id(handle), set())
