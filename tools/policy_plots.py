"""Draws docs/policies/*.svg: the behaviour of each prebuilt policy on a modelled cluster.

The run is defined by the policy's page: its Python blocks are one program, which defines `policies` and `model`. A
picture contains the numbers that it shows, so that a test can check that the policies still decide the same.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from kungfu.cli.png import BLUE, ORANGE, RED, blank_figure
from kungfu.compiler import compile_policies
from kungfu.policy_definition import Policy
from kungfu.testing import ClusterModel, SimulatedRun, SimulatedStep
from kungfu.testing.simulated_run import simulate

PAGES = Path(__file__).parent.parent / "docs" / "policies"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Values = list[float]
Drawing = dict[str, Any]


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelledRun:
    """A run of a page's program: its steps, its results, and the names that the program defines."""

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
    """Runs policies on the model that a page's program defines."""
    steps = list[SimulatedStep]()
    model = names["model"]
    result = simulate(compile_policies(list(policies)), model, seen=steps.append)
    return ModelledRun(model, tuple(steps), result, names)


# ---- the numbers -----------------------------------------------------------------------------------------------------


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
    """The throughput of each step, including the stop of the following barrier."""
    begins = [*(one.seconds for one in run.steps), run.result.seconds]
    return [one.samples / (end - one.seconds) for one, end in zip(run.steps, begins[1:], strict=True)]


def expected_end(run: ModelledRun) -> Values:
    """The time at which the job would be complete with the peers of each step, in seconds."""
    samples = run.model.start.job_samples
    return [one.seconds + (samples - one.samples_done) / run.model.throughput(one.size) for one in run.steps]


def constant(name: str, run: ModelledRun) -> Values:
    return [float(run.names[name])] * len(run.steps)


@dataclass(frozen=True)
class Line:
    """A quantity of the run, or of the same run without the policy."""

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
    """The numbers of a policy's picture, as a JSON object."""
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
    """The points at which a quantity changes, or every n-th value if the quantity changes in most steps."""
    values = [float(f"{one:.4g}") if math.isfinite(one) else None for one in line.quantity(run)]
    numbered = list(zip((int(one) for one in run.steps), values, strict=True))
    changes = [numbered[0], *(new for old, new in itertools.pairwise(numbered) if new[1] != old[1])]
    jumps = len(changes) <= _MOST_POINTS // 2
    points = changes if jumps else numbered[:: -(-len(numbered) // _MOST_POINTS)]
    if points[-1][0] != numbered[-1][0]:
        points = [*points, numbered[-1]]
    return {"label": line.label, "jumps": jumps, "points": [list(one) for one in points]}


# ---- the picture -----------------------------------------------------------------------------------------------------

WIDTH, MARGINS, PANEL = 6.4, 0.5, 1.25  # inches


def svg(shown: Drawing) -> str:
    """The picture of a drawing's numbers as SVG, with the numbers as its description."""
    panels = shown["panels"]
    figure = blank_figure(WIDTH, MARGINS + PANEL * len(panels))
    column = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(column, panels, strict=True):
        _draw_panel(axes, panel, decisions=shown["decisions"])
    column[-1].set_xlabel("step", fontsize=8)
    about = {"Title": f"{shown['policy']} on a modelled cluster", "Description": json.dumps(shown), "Date": None}
    image = io.StringIO()
    # Text is kept as text, and clip paths have the same names in every run: small files, and no accidental changes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": shown["policy"]}):
        figure.savefig(image, format="svg", metadata=about)
    return re.sub(r"[ \t]+$", "", image.getvalue(), flags=re.MULTILINE)


def _draw_panel(axes: Any, panel: Drawing, *, decisions: Sequence[int]) -> None:
    # The run with the policy is drawn above the run without it.
    for line, colour, above in zip(panel["lines"], (BLUE, ORANGE), (4, 3), strict=False):
        steps = [step for step, _ in line["points"]]
        values = [math.nan if value is None else value for _, value in line["points"]]
        drawn = "steps-post" if line["jumps"] else "default"
        axes.plot(steps, values, color=colour, drawstyle=drawn, linewidth=1.5, label=line["label"], zorder=above)
        for start, end in _gaps(line["points"]):
            axes.hlines(0.92, start, end, colour, ":", transform=axes.get_xaxis_transform())
            axes.text(start, 0.74, "NaN", color=colour, fontsize=8, transform=axes.get_xaxis_transform())
    # A decision is a mark at the bottom of its step.
    axes.plot(decisions, [0.04] * len(decisions), "|", color=RED, markersize=8, transform=axes.get_xaxis_transform())
    axes.set_title(panel["title"], loc="left", fontsize=9, fontweight="bold")
    if any(line["label"] for line in panel["lines"]):
        # Next to the title, away from the curves.
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, frameon=False, borderaxespad=0)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0] if axes.dataLim.y0 < 0 else 0.0))
    axes.margins(x=0)
    axes.grid(axis="y", alpha=0.3)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _gaps(points: Sequence[tuple[float, float | None]]) -> Iterator[tuple[float, float]]:
    """The ranges in which the quantity is NaN."""
    start: float | None = None
    for step, value in points:
        if value is None and start is None:
            start = step
        elif value is not None and start is not None:
            yield start, step
            start = None
    if start is not None:
        yield start, points[-1][0]


if __name__ == "__main__":
    for policy in PLOTS:
        (PAGES / f"{policy}.svg").write_text(svg(drawing(policy)))
