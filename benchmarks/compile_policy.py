"""The cost of a policy before the first step: ``python -m benchmarks.compile_policy [--nodes 200]``.

For policies of about `--nodes` nodes, and the prebuilt policies: the seconds to build, check, simplify and schedule
them (``compile``), to print their description (``explain``), and to create their TensorFlow ops (``trace``, without
TensorFlow's import). Prints a table, and as its last line JSON with the largest of each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

import kungfu as kf
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.control import Rule
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy
from kungfu.signal import SOURCES, Signal

REPEATS = 5


@dataclass(frozen=True)
class Measured:
    """The seconds for one policy: medians of several runs, and one trace."""

    policy: str
    nodes: int
    compile_s: float
    explain_s: float
    trace_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description="seconds to compile, explain and trace policies")
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 200, 1000], help="sizes of the made-up policies")
    given = parser.parse_args(arguments)
    policies = [gns_batch(max_peers=8), schedule({100: 4, 1000: 2}), *(of_nodes(number) for number in given.nodes)]
    measured = [_measure(one) for one in policies]
    Console().print(_table(measured))
    at_200 = [one for one in measured if one.nodes <= 250]
    print(json.dumps({f"{part}_s": max(getattr(one, f"{part}_s") for one in at_200) for part in ("compile", "explain")}
                     | {"policies": [asdict(one) for one in measured]}))  # fmt: skip


def of_nodes(number: int) -> Policy:
    """A policy of about N nodes: averages of averages, choices between averages, and a message every ten nodes."""

    def body(training: Any) -> Rule:
        value: Signal = kf.ops.all_reduce(training.loss, "mean")
        for index in range(max(1, number // 10)):
            own = training.busy_seconds * (index + 1)
            slowest = kf.ops.max(kf.ops.all_gather(own))
            value = kf.ops.where(slowest > index, value.ema(0.1) + slowest, value - index)
        return kf.control.every(10).rescale(value)

    return Policy(f"{number} nodes", body)


def _measure(policy: Policy) -> Measured:
    compile_s, plan = _timed(lambda: compile_policies([policy]))
    explain_s, _ = _timed(plan.explain)
    return Measured(policy.name, len(plan.nodes), compile_s, explain_s, _traced(plan))


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    seconds, result = [], None
    for _ in range(REPEATS):
        started = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds)[REPEATS // 2], result


def _traced(plan: CompiledPolicies) -> float:
    """The seconds to create the variables and ops of a plan, as in a step."""
    import tensorflow as tf

    from kungfu.compiler.lower import fused, lower

    specs = {name: _spec(name) for name in {*plan.source_kinds, "size", "rank"}}
    started = time.perf_counter()
    program = fused(lower(plan))

    def step(sources: dict[str, Any]) -> Any:
        return program.conclude(sources, program.piggybacked(sources), lambda vectors, tag: vectors)

    tf.function(step, autograph=False).get_concrete_function(specs)
    return time.perf_counter() - started


def _spec(name: str) -> Any:
    import tensorflow as tf

    one = tf.TensorSpec([], SOURCES[name].type.dtype)
    return [tf.TensorSpec([1000], tf.float32)] * 2 if SOURCES[name].type.shape == ("nest",) else one


def _table(measured: Sequence[Measured]) -> Table:
    table = Table("policy", "nodes", "compile, ms", "explain, ms", "trace, ms", title="before the first step")
    for one in measured:
        times = (f"{seconds * 1000:.1f}" for seconds in (one.compile_s, one.explain_s, one.trace_s))
        table.add_row(one.policy, str(one.nodes), *times)
    return table


if __name__ == "__main__":
    main()
