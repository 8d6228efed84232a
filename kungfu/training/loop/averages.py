"""The averages of a step, and the numbers that a program gives the policies of its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kungfu.signal.source_location import location_of_caller
from kungfu.training.graph.average import average_before_last
from kungfu.training.graph.gradient_message import Averaging
from kungfu.training.graph.program_variables import publish
from kungfu.training.run import Run


def publish_in_step(run: Run, name: str, value: Any) -> None:
    """Graph: see ``Training.publish``."""
    publish(run.graph_state.metrics.published, run.trace, name, value)


def feed(run: Run, name: str, value: Any) -> None:
    """Host: see ``Training.feed``."""
    run.graph_state.metrics.fed.feed(name, value, where=location_of_caller())


def average_in_step(run: Run, gradients: Any, last: Callable[[Averaging], Any], *, optimizer: Any = None) -> Any:
    """Graph: the means of a nest of gradients over the peers.

    Args:
        run: What the step is of.
        gradients: Of this peer.
        last: Makes the means of the step's last average, on whose message rides what the policies need.
        optimizer: The one that applies them, of several.
    """
    trace = run.trace
    with trace.average():
        averaging = run.averaging(optimizer)
        if not trace.is_last_average:
            means, waited_s = average_before_last(averaging, gradients, place=trace.averages)
            trace.waited.append(waited_s)
            return means
        run.graph_state.metrics.published.refuse_missing(trace.published, trace.captured())
        means = last(averaging)
    trace.averaged(means)
    return means
