"""Mermaid flowcharts as SVG, for the pages' subset: boxes, one level of subgraphs, arrows from top to bottom.

To draw them itself, a browser would have to load three megabytes of Mermaid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

LETTER, LINE, PADDING = 8.0, 18.0, 12.0  # pixels: the width of a letter, the height of a line, the padding of a text
BETWEEN, DOWN = 26.0, 44.0  # pixels between boxes, horizontally and vertically
SWEEPS = 12

Edge = tuple[str, str]
Point = tuple[float, float]


@dataclass
class Chart:
    """The contents of a flowchart; ``inner`` has its subgraphs."""

    labels: dict[str, str] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    inner: dict[str, Chart] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawing:
    """The centres of the boxes of a chart, and the points of its arrows."""

    width: float
    height: float
    centres: Mapping[str, Point]
    routes: Sequence[Sequence[Point]]


def parse(text: str) -> Chart:
    """Reads ``flowchart TB`` with ``name``, ``name[label]``, ``subgraph name`` to ``end``, and ``one --> other``.

    An arrow belongs to a subgraph if both of its ends are in it.
    """
    chart = Chart()
    current = chart
    for line in (line.strip() for line in text.strip().splitlines()[1:]):
        if line.startswith("subgraph "):
            name = line.removeprefix("subgraph ")
            chart.labels[name] = name
            current = chart.inner.setdefault(name, Chart())
        elif line == "end":
            current = chart
        elif arrow := re.fullmatch(r"(\w+) --> (\w+)", line):
            one, other = arrow.groups()
            home = next((sub for sub in chart.inner.values() if {one, other} <= sub.labels.keys()), chart)
            home.edges.append((one, other))
        elif box := re.fullmatch(r"(\w+)(?:\[(.*)\])?", line):
            current.labels[box[1]] = box[2] or box[1]
        else:
            raise ValueError(f"a line of a flowchart that cannot be drawn: {line!r}")
    return chart


def svg(text: str) -> str:
    """A flowchart as an HTML element without empty lines, in the colours of the page."""
    body, width, height = _drawn(parse(text))
    box = f"0 0 {width:.0f} {height:.0f}"
    head = '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    marker = f'<defs>{head}<path d="M0 0L8 4L0 8z"/></marker></defs>'
    return f'<svg class="flowchart" viewBox="{box}" style="max-width:{width:.0f}px" role="img">{marker}{body}</svg>'


def _drawn(chart: Chart) -> tuple[str, float, float]:
    """The SVG of a chart's boxes and arrows, with its width and height."""
    inner = {name: _drawn(one) for name, one in chart.inner.items()}
    sizes = {}
    for name, label in chart.labels.items():
        sizes[name] = (len(label) * LETTER + 2 * PADDING, LINE + PADDING)
        if name in inner:
            sizes[name] = (inner[name][1] + 2 * PADDING, inner[name][2] + LINE + 2 * PADDING)
    drawing = layered(sizes, chart.edges)
    parts = [_arrow(route) for route in drawing.routes]
    for name, (x, y) in drawing.centres.items():
        (width, height), label = sizes[name], escape(chart.labels[name])
        left, top = x - width / 2, y - height / 2
        kind = "group" if name in inner else "box"
        shape = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
        parts.append(f'<rect class="{kind}" rx="4" {shape}/>')
        baseline = top + LINE if name in inner else y + LINE / 4
        parts.append(f'<text x="{x:.1f}" y="{baseline:.1f}" text-anchor="middle">{label}</text>')
        if name in inner:
            parts.append(
                f'<g transform="translate({left + PADDING:.1f} {top + LINE + PADDING:.1f})">{inner[name][0]}</g>'
            )
    return "".join(parts), drawing.width, drawing.height


def _arrow(route: Sequence[Point]) -> str:
    """The SVG of a curve that enters each of its points from above."""
    path = f"M{route[0][0]:.1f} {route[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(route):
        middle = (y0 + y1) / 2
        path += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return f'<path class="arrow" d="{path}" marker-end="url(#arrow)"/>'


def layered(sizes: Mapping[str, Point], edges: Iterable[Edge]) -> Drawing:
    """A layout in layers (Sugiyama et al., 1981), each box below all boxes that point to it.

    Arrows over several layers pass between the boxes, each straight down at a separate place in each layer.
    """
    edges = list(edges)
    layer_of = _layers(sizes, edges)
    ways = [_way(one, other, layer_of) for one, other in edges]
    layers: list[list[str]] = [[] for _ in range(max(layer_of.values()) + 1)]
    for point in [*sizes, *(point for way in ways for point in way if point not in sizes)]:
        layers[layer_of[point]].append(point)
    heights = [max(sizes.get(point, (0.0, 0.0))[1] for point in layer) for layer in layers]
    room = {point: sizes.get(point, (0.0, heights[number])) for number, layer in enumerate(layers) for point in layer}
    _untangle(layers, [pair for way in ways for pair in pairwise(way)])
    width = max(sum(room[point][0] for point in layer) + BETWEEN * (len(layer) - 1) for layer in layers)
    centres: dict[str, Point] = {}
    y = 0.0
    for layer, height in zip(layers, heights, strict=True):
        x = (width - sum(room[point][0] for point in layer) - BETWEEN * (len(layer) - 1)) / 2
        for point in layer:
            centres[point] = (x + room[point][0] / 2, y + height / 2)
            x += room[point][0] + BETWEEN
        y += height + DOWN
    routes = [_route(way, centres, room) for way in ways]
    return Drawing(width, y - DOWN, {name: centres[name] for name in sizes}, routes)


def _layers(names: Iterable[str], edges: Sequence[Edge]) -> dict[str, int]:
    """The layer of each box: the length of the longest chain of arrows that leads to it."""
    layer_of = dict.fromkeys(names, 0)
    for _ in layer_of:
        for one, other in edges:
            layer_of[other] = max(layer_of[other], layer_of[one] + 1)
    return layer_of


def _way(one: str, other: str, layer_of: dict[str, int]) -> list[str]:
    """The path between two boxes through a named point in each layer between them; adds the points' layers."""
    between = {f"{one} {other} {layer}": layer for layer in range(layer_of[one] + 1, layer_of[other])}
    layer_of |= between
    return [one, *between, other]


def _untangle(layers: list[list[str]], pairs: Sequence[Edge]) -> None:
    """Sorts each layer by the mean place of its boxes' neighbours, alternately downwards and upwards."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for one, other in pairs:
        above.setdefault(other, []).append(one)
        below.setdefault(one, []).append(other)
    for sweep in range(SWEEPS):
        neighbours, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for fixed, layer in pairwise(order):
            place = {point: number / max(1, len(fixed) - 1) for number, point in enumerate(fixed)}
            own = {point: number / max(1, len(layer) - 1) for number, point in enumerate(layer)}
            layer.sort(key=lambda point: _mean([place[one] for one in neighbours.get(point, [])], else_=own[point]))


def _mean(values: Sequence[float], *, else_: float) -> float:
    return sum(values) / len(values) if values else else_


def _route(way: Sequence[str], centres: Mapping[str, Point], room: Mapping[str, Point]) -> list[Point]:
    """The points of an arrow from the first box's lower edge through each layer to the last box's upper edge."""
    edges = [(x, y + side * room[point][1] / 2) for point in way for x, y in [centres[point]] for side in (-1, 1)]
    return edges[1:-1]
