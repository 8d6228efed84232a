"""Draws docs/policies/*.svg: what each prebuilt policy does on a modelled cluster.

The run is that of the policy's page: its Python blocks are one program, which defines `policies` and `model`. A picture
holds the numbers that it is drawn from, so that a test can tell whether the policies still decide so.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from kungfu.compiler import compile_policies
from kungfu.policy_definition import Policy
from kungfu.testing import ClusterModel, SimulatedRun, SimulatedStep
from kungfu.testing.simulated_run import simulate

PAGES = Path(__file__).parent.parent / "docs" / "policies"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Values = list[float]
Drawing = dict[str, Any]


# ---- what is run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelledRun:
    """A run of a page's program: its steps, what came of it, and the names that the program defines."""

    model: ClusterModel
    steps: tuple[SimulatedStep, ...]
    result: SimulatedRun
    names: Mapping[str, Any]


def program(name: str) -> dict[str, Any]:
    """The names that the program of a policy's page defines."""
    page, names = PAGES / f"{name}.md", dict[str, Any]()
    for source in PROGRAM.findall(page.read_text()):
        exec(compile(source, str(page), "exec"), names)
    return names


def modelled(policies: Sequence[Policy], names: Mapping[str, Any]) -> ModelledRun:
    """These policies on the page's model."""
    steps = list[SimulatedStep]()
    model = names["model"]
    result = simulate(compile_policies(list(policies)), model, seen=steps.append)
    return ModelledRun(model, tuple(steps), result, names)


# ---- what is shown of it ---------------------------------------------------------------------------------------------


def peers(run: ModelledRun) -> Values:
    return [float(one.size) for one in run.steps]


def batch(run: ModelledRun) -> Values:
    return [float(one.samples) for one in run.steps]


def learning_rate(run: ModelledRun) -> Values:
    return [one.learning_rate for one in run.steps]


def noise_scale(run: ModelledRun) -> Values:
    return [run.model.noise_by_step(one) for one in run.steps]


def loss(run: ModelledRun) -> Values:
    return [run.model.loss_by_step(one) for one in run.steps]


def samples_per_second(run: ModelledRun) -> Values:
    """Of each step, with the stop of the barrier after it."""
    begins = [*(one.seconds for one in run.steps), run.result.seconds]
    return [one.samples / (end - one.seconds) for one, end in zip(run.steps, begins[1:], strict=True)]


def expected_end(run: ModelledRun) -> Values:
    """The seconds after which the job would be complete with the peers of each step."""
    samples = run.model.start.job_samples
    return [one.seconds + (samples - one.samples_done) / run.model.throughput(one.size) for one in run.steps]


def constant(name: str, run: ModelledRun) -> Values:
    return [float(run.names[name])] * len(run.steps)


@dataclass(frozen=True)
class Line:
    """A quantity of the run, or of the same one without the policy."""

    label: str
    quantity: Callable[[ModelledRun], Values]
    without: bool = False


PEERS = ("peers", (Line("", peers),))
BATCH = ("global batch, samples", (Line("", batch),))
RATE = ("learning rate", (Line("", learning_rate),))
SPEED = ("samples / s", (Line("with it", samples_per_second), Line("without it", samples_per_second, without=True)))
NOISE = ("samples", (Line("global batch", batch), Line("noise scale", noise_scale)))
END = ("expected end, s", (Line("with its peers", expected_end), Line("deadline", partial(constant, "deadline_s"))))

PLOTS: Mapping[str, tuple[tuple[str, tuple[Line, ...]], ...]] = {
    "autoscale": (PEERS, SPEED),
    "gns_batch": (PEERS, NOISE),
    "hybrid_scaling": (PEERS, BATCH, RATE),
    "linear_scaling": (PEERS, BATCH, RATE),
    "replace_stragglers": (SPEED,),
    "schedule": (PEERS, SPEED),
    "stop_on_nan": (("loss", (Line("with it", loss), Line("without it", loss, without=True))),),
    "utility": (PEERS, END),
}


def drawing(name: str) -> Drawing:
    """The numbers of a policy's picture: a JSON object."""
    names = program(name)
    run = modelled(names["policies"], names)
    others = [one for one in names["policies"] if one.name != name]
    is_compared = any(one.without for _, lines in PLOTS[name] for one in lines)
    without = modelled(others, names) if is_compared else run
    panels = [
        {"title": title, "lines": [_line(one, without if one.without else run) for one in lines]}
        for title, lines in PLOTS[name]
    ]
    own = sorted({one.step for one in run.result.decisions if re.fullmatch(rf"{name}(_\d+)?", one.rule)})
    return {"policy": name, "decisions": own, "panels": panels}


_MOST_POINTS = 100


def _line(line: Line, run: ModelledRun) -> Drawing:
    """Where a quantity changes, or where that is in most steps, every so many of its values."""
    values = [float(f"{one:.4g}") if math.isfinite(one) else None for one in line.quantity(run)]
    numbered = list(zip((int(one) for one in run.steps), values, strict=True))
    changes = [numbered[0], *(new for old, new in itertools.pairwise(numbered) if new[1] != old[1])]
    jumps = len(changes) <= _MOST_POINTS // 2
    points = changes if jumps else numbered[:: -(-len(numbered) // _MOST_POINTS)]
    if points[-1][0] != numbered[-1][0]:
        points = [*points, numbered[-1]]
    return {"label": line.label, "jumps": jumps, "points": [list(one) for one in points]}


# ---- how it is drawn -------------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, TOP, HEIGHT, GAP, BOTTOM = 640, 62, 16, 30, 92, 40, 26
COLOURS = ("#1f6fb4", "#d9730d")
MARK, GRID, TEXT = "#b3261e", "#e6e8eb", "#3c4043"


@dataclass(frozen=True)
class Scale:
    """From numbers to places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> str:
        place = self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
        return f"{place:.1f}".removesuffix(".0")


def svg(shown: Drawing) -> str:
    """The picture of these numbers."""
    height = TOP + len(shown["panels"]) * (HEIGHT + GAP) - GAP + BOTTOM
    last = max(points[-1][0] for panel in shown["panels"] for points in (one["points"] for one in panel["lines"]))
    across = Scale(0, last, LEFT, WIDTH - RIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11" fill="{TEXT}">',
        f"<title>{shown['policy']} on a modelled cluster</title>",
        f"<metadata>{escape(json.dumps(shown))}</metadata>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(shown["panels"]):
        parts += _panel(panel, across, top=TOP + number * (HEIGHT + GAP), decisions=shown["decisions"])
    parts += [_text(across(one), height - 10, f"{one:g}", "middle") for one in _ticks(0, last, most=8)]
    parts.append(_text(LEFT - 12, height - 10, "step", "end"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Drawing, across: Scale, *, top: int, decisions: Sequence[int]) -> Iterator[str]:
    values = [value for one in panel["lines"] for _, value in one["points"] if value is not None]
    low, high = min(0.0, *values), max(values) * 1.1
    up = Scale(low, high, top + HEIGHT, top)
    for tick in _ticks(low, high, most=5):
        yield f'<path d="M{LEFT} {up(tick)}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield _text(LEFT - 6, float(up(tick)) + 4, f"{tick:g}", "end")
    yield _text(LEFT, top - 10, panel["title"], "start", weight="bold")
    right = float(WIDTH - RIGHT)
    for line, colour in reversed(list(zip(panel["lines"], COLOURS, strict=False))):
        yield f'<path d="{_path(line, across, up)}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        for start, end in _gaps(line["points"]):
            along = f"M{across(start)} {top + 6}H{across(end)}"
            yield f'<path d="{along}" stroke="{colour}" stroke-width="1.8" stroke-dasharray="2 3"/>'
            yield _text(across(start), top + 20, "NaN", "start", colour=colour)
        if line["label"]:
            yield _text(right, top - 10, line["label"], "end", colour=colour)
            right -= 7 * len(line["label"]) + 14
    for step in decisions:
        at, foot = across(step), top + HEIGHT
        yield f'<path d="M{at} {foot}v-7" stroke="{MARK}" stroke-width="2"><title>decides in step {step}</title></path>'


def _path(line: Drawing, across: Scale, up: Scale) -> str:
    """Steps where the quantity jumps; a gap where it is no number."""
    parts, is_open = list[str](), False
    for step, value in line["points"]:
        if line["jumps"] and is_open:
            parts.append(f"H{across(step)}")
        if value is None:
            is_open = False
            continue
        moves = "L" if is_open else "M"
        parts.append(f"V{up(value)}" if line["jumps"] and is_open else f"{moves}{across(step)} {up(value)}")
        is_open = True
    return "".join(parts)


def _gaps(points: Sequence[tuple[float, float | None]]) -> Iterator[tuple[float, float]]:
    """From where to where the quantity is no number."""
    start: float | None = None
    for step, value in points:
        if value is None and start is None:
            start = step
        elif value is not None and start is not None:
            yield start, step
            start = None
    if start is not None:
        yield start, points[-1][0]


def _ticks(low: float, high: float, *, most: int) -> list[float]:
    """At most so many round numbers from the one to the other."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(one * power for one in (1, 2, 5, 10) if one * power >= rough)
    return [one * width for one in range(math.ceil(low / width), math.floor(high / width) + 1)]


def _text(x: float | str, y: float, text: str, anchor: str, *, weight: str = "normal", colour: str = TEXT) -> str:
    style = f' text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x}" y="{y:g}"{style}>{escape(text)}</text>'


if __name__ == "__main__":
    for policy in PLOTS:
        (PAGES / f"{policy}.svg").write_text(svg(drawing(policy)))
