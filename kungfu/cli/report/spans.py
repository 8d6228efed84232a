"""The parts of every stop on every peer, as trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.tree import Tree

from kungfu.cli.report.values import duration, figure, items_of, number, text_of

__all__ = ["span_trees"]

Fields = Mapping[str, Any]


def span_trees(events: Sequence[Fields]) -> Iterator[Tree]:
    """A tree for each view of a run: its peers, the slowest first, and what took each of them how long.

    >>> span = {"event": "span", "what": "rescale", "peer": 1, "view": 2, "step": 9, "s": 0.05, "parts": []}
    >>> [tree.label for tree in span_trees([span])]
    ['view 2, behind step 9']
    """
    spans = [event for event in events if event.get("event") == "span"]
    for view in dict.fromkeys(span.get("view") for span in spans):
        there = sorted((span for span in spans if span.get("view") == view), key=_slowest_first)
        tree = Tree(f"view {figure(view)}, behind step {figure(there[0].get('step'))}")
        for span in there:
            peer = f"peer {figure(span.get('peer'))}"
            _grow(tree.add(f"{peer}, {text_of(span, 'what')}: {duration(span.get('s'))}"), span)
        yield tree


def _slowest_first(span: Fields) -> tuple[bool, float]:
    """A joiner waits for long before it is admitted, and keeps nobody waiting."""
    return text_of(span, "what") == "join", -(number(span.get("s")) or 0.0)


def _grow(tree: Tree, span: Fields) -> None:
    for part in items_of(span, "parts"):
        if isinstance(part, Mapping):
            _grow(tree.add(f"{text_of(part, 'name')} {duration(part.get('s'))}"), part)
