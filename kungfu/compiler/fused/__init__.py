"""A plan as two programs in bytecode, for one native op each: its dozens of scalars cost next to nothing per step.

`python -m benchmarks.policy_overhead --samples 125` measures the difference, with noise scale, throughput and
stragglers on two peers and a step of about 12 ms of processor time. On a busy backend of two cores, in four
repetitions of 100 blocks, the policies cost 1.8 to 3.7 % of a step's processor time as two ops and 5.3 to 7.0 % op by
op: 0.2 to 0.5 ms more per step. The bound on what policies may cost is 3 %, so op by op alone does not do.

Nor does XLA. The arithmetic of the same policies (127 nodes, 19 fields of state), called 200 times in a loop in the
graph, took per call 42 to 48 microseconds of processor time as two ops, 85 to 92 under
``tf.function(jit_compile=True)`` and 137 to 148 op by op, of which the empty loop is 10 (the same machine, three runs).
XLA also took 2.7 s to trace and compile, against 0.2 s, and compiles again for each size of the cluster.
"""

from kungfu.compiler.fused.program import fused

__all__ = ["fused"]
