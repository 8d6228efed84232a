"""A plan as two bytecode programs, for one native op each, so that dozens of scalars cost next to nothing per step.

`python -m benchmarks.policy_overhead --samples 125` measures the difference, with noise scale, throughput and
stragglers on two peers and a step of about 12 ms of processor time. On a busy backend of two cores, in four
repetitions of 100 blocks, the policies cost 1.8 to 3.7 % of a step's processor time as two ops and 5.3 to 7.0 % op by
op: 0.2 to 0.5 ms more per step. The limit for the cost of policies is 3 %, so op by op is too slow. XLA is too slow as
well. The arithmetic of the same policies (127 nodes, 19 fields of state), called 200 times in a loop in the graph, took
per call 42 to 48 microseconds of processor time as two ops, 85 to 92 under ``tf.function(jit_compile=True)`` and 137 to
148 op by op, of which the empty loop is 10 (the same machine, three runs). XLA also took 2.7 s to trace and compile,
against 0.2 s, and compiles again for each size of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kungfu import native
from kungfu.compiler.assembler import SUMMED, Bytecode, after_sync, before_sync
from kungfu.compiler.compiled_policies import Outcome
from kungfu.compiler.lower import FoldVariable, Program, offered
from kungfu.control.action import mask_of


@dataclass(frozen=True, eq=False)
class BytecodeProgram(Program):
    """The two sides of a step as bytecode."""

    before: Bytecode
    after: Bytecode

    @tf.autograph.experimental.do_not_convert
    def piggybacked(self, sources: Mapping[str, Any]) -> tf.Tensor:
        (piggybacked,) = run_bytecode(self.before, self.variables, {**sources, **self.gradient_reductions(sources)})
        return piggybacked

    @tf.autograph.experimental.do_not_convert
    def conclude(self, sources: Mapping[str, Any], summed: tf.Tensor, all_reduce: Any) -> Outcome:
        known = {**sources, **self.gradient_reductions(sources), SUMMED: summed}
        outcome = Outcome(*run_bytecode(self.after, self.variables, known))
        size, has_fractions = tf.cast(sources["size"], tf.int64), self.plan.straggler_fractions is not None
        masks = sum(mask_of(rule.action) is not None for rule in self.plan.rules)
        return outcome._replace(
            masks=tf.reshape(outcome.masks, [masks, size]),
            fractions=tf.reshape(outcome.fractions, [int(has_fractions), size]),
        )


def fused(program: Program) -> Program:
    """The same program, with hundreds of small operations fused into two.

    The order and the rounding of the operations do not change; an exponential, a logarithm or a long sum may differ in
    the last bit.

    Returns:
        The program unchanged if its plan has no rule, or waits for separate messages, or if there is neither a native
        library nor a compiler; a step then takes a few tenths of a millisecond longer.
    """
    if not program.plan.rules or program.plan.exchanges or not native.is_available():
        return program
    return BytecodeProgram(program.plan, program.states, before_sync(program.plan), after_sync(program.plan))


def run_bytecode(bytecode: Bytecode, variables: Sequence[FoldVariable], known: Mapping[str, Any]) -> list[tf.Tensor]:
    """The result vectors of bytecode, from the states of all folds and the step's values by name."""
    values = [offered(known, name=name, dtype=dtype) for name, dtype in bytecode.inputs.items()]
    states = [native.handle_of(variables[index].variable) for index in bytecode.states]
    dtypes = [tf.as_dtype(one) for one in bytecode.results]
    return list(native.load().ops.kungfu_evaluate(states, values, Rs=dtypes, bytecode=bytecode.text))
