"""The all-reduce between hosts with slow links, with ranks in the order of the hosts and mixed.

Two hosts of two peers each are namespaces of this machine (see ``benchmarks.emulation.network``), so that their links,
and not its cores, limit Horovod's all-reduce. The seconds of a message are medians. Beside them stands the least time
that the link permits if each host sends a message once, as a ring in the order of hosts does. The ratio of mixed to
ordered ranks must be at most 1.1.

Prints a table, and as its last line a JSON object. Ends with an error on a machine that permits no such network.

Run: ``python -m benchmarks.hosts [--rounds 5] [--mbit 100] [--megabytes 8]``
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks.emulation.network import NetworkUnavailableError, network
from benchmarks.emulation.ring import bound_s, message_s

ORDERED, MIXED = (0, 0, 1, 1), (0, 1, 0, 1)  # the host of each rank


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=_positive(int), default=5, help="messages of each order (5)")
    parser.add_argument("--mbit", type=_positive(float), default=100.0, help="of each link, in Mbit/s (100)")
    parser.add_argument("--megabytes", type=_positive(float), default=8.0, help="of a message (8)")
    return parser.parse_args(words)


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not 0 < (value := kind(text)) < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not a positive number")
        return value

    return parse


def main() -> None:
    """Measures all figures, and prints them."""
    given, load = arguments(), os.getloadavg()[0]
    try:
        figures = ring(given)
    except NetworkUnavailableError as error:
        raise SystemExit(f"benchmarks.hosts needs an emulated network, which this machine refuses: {error}") from error
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:g}")
    Console().print(table)
    print(json.dumps({**figures, **vars(given), "load": [round(load, 2), round(os.getloadavg()[0], 2)]}))


def ring(given: argparse.Namespace) -> dict[str, float]:
    """The seconds of a message with ranks in the order of hosts and mixed, and the least that the link permits."""
    with network(2) as whole:
        for host in range(2):
            whole.slow_down(host, mbit=given.mbit)
        measure = partial(message_s, whole, megabytes=given.megabytes, rounds=given.rounds)
        ordered_s, mixed_s = measure(ORDERED), measure(MIXED)
    bound = bound_s(len(ORDERED), crossings=1, megabytes=given.megabytes, mbit=given.mbit)
    times = {"ordered_s": ordered_s, "mixed_s": mixed_s, "bound_s": bound, "mixed_over_ordered": mixed_s / ordered_s}
    return {name: round(value, 3) for name, value in times.items()}


if __name__ == "__main__":
    main()
