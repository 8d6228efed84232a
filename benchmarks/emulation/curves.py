"""Measured and stated curves of throughput by number of peers, for emulated device time.

The measured curves are from Pollux (Qiao et al., OSDI 2021: petuum/adaptdl, simulator/traces): the seconds of a step of
ResNet-18 on CIFAR-10 and of ResNet-50 on ImageNet, on T4 GPUs, by nodes, GPUs and local batch. They are published
elsewhere and read from a folder next to the repository; without it, a benchmark uses a stated curve.

A search from size to size stops at the first dip of the measurements, even if the dip was caused by the network on that
day. So a search is judged on the least concave majorant, the measured curve without its dips.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DATA", "GPUS_EACH", "Curve", "amdahl", "best_size", "filled", "majorant", "measured_t4"]

DATA = Path(__file__).parents[3] / "shared" / "data" / "pollux"
GPUS_EACH = 4  # represented by one peer


@dataclass(frozen=True)
class Curve:
    """The samples per second of a whole job by its number of peers, for every size from the least to the most.

    Args:
        name: The measured system, or the formula.
        throughput: Samples / s by peers.

    >>> Curve("two sizes", {1: 100.0, 2: 160.0}).step_s(2, batch=80)
    0.5
    """

    name: str
    throughput: Mapping[int, float]

    def __post_init__(self) -> None:
        sizes = sorted(self.throughput)
        if not sizes or sizes[0] < 1 or sizes != list(range(sizes[0], sizes[-1] + 1)):
            raise ValueError(f"{self.name}: takes every size from the least to the most, and was given {sizes}")
        bad = {size: one for size, one in self.throughput.items() if not 0 < one < math.inf}
        if bad:
            raise ValueError(f"{self.name}: takes samples / s above 0, and was given {bad}")

    @property
    def least(self) -> int:
        """The fewest peers."""
        return min(self.throughput)

    @property
    def most(self) -> int:
        """The most peers."""
        return max(self.throughput)

    def step_s(self, size: int, *, batch: float) -> float:
        """The seconds of a step with ``batch`` samples."""
        return batch / self.throughput[size]

    def seconds(self, size: int, *, samples: float) -> float:
        """The seconds of a job of fixed size: the static twin of an elastic job."""
        return samples / self.throughput[size]

    def faster(self, factor: float) -> Curve:
        """The same curve with step times divided by a factor."""
        return Curve(self.name, {size: one * factor for size, one in self.throughput.items()})

    def smoothed(self) -> Curve:
        """The least concave majorant of the curve."""
        return Curve(f"{self.name}, least concave majorant", majorant(self.throughput))


def measured_t4(
    folder: Path, application: str, *, local_batch: Callable[[int], float], most: int, least: int = 2
) -> Curve:
    """A measured curve; one peer represents four GPUs.

    Of several rows for one number of GPUs, the rows on the fewest nodes are used. A step's seconds are interpolated
    linearly between two measured batches, and samples per second between two measured numbers of GPUs.

    Args:
        folder: The folder of the published files.
        application: "cifar10" or "imagenet".
        local_batch: The samples of one GPU in a step, by the number of GPUs.
        most: The most peers to read.
        least: The fewest peers to read; sizes below 8 GPUs are in another file, of a separate series.

    Raises:
        ValueError: The least or the most size was not measured, or a batch is outside of the measured range.
    """
    path = folder / f"{application}-scalability.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        steps = _steps_on_fewest_nodes(csv.DictReader(lines))
    found: dict[int, float] = {}
    for gpus, seconds_by_batch in steps.items():
        if gpus % GPUS_EACH == 0 and least <= gpus // GPUS_EACH <= most:
            batch = local_batch(gpus)
            if not min(seconds_by_batch) <= batch <= max(seconds_by_batch):
                raise ValueError(f"{path}: {gpus} GPUs were measured with other batches than {batch:g} samples each")
            found[gpus // GPUS_EACH] = gpus * batch / between(seconds_by_batch, batch)
    if {least, most} - {*found}:
        raise ValueError(f"{path}: {least} and {most} peers of {GPUS_EACH} GPUs were not both measured")
    return Curve(f"T4 GPUs, {application}", filled(found))


def _steps_on_fewest_nodes(rows: Iterable[Mapping[str, str]]) -> dict[int, dict[float, float]]:
    """The seconds of a step, by number of GPUs and then by samples per GPU."""
    nodes: dict[int, int] = {}
    found: dict[int, dict[float, float]] = {}
    for row in rows:
        gpus, on = int(row["num_replicas"]), int(row["num_nodes"])
        if on < nodes.get(gpus, on + 1):
            nodes[gpus], found[gpus] = on, {}
        if on == nodes[gpus]:
            found[gpus][float(row["local_bsz"])] = float(row["step_time"])
    return found


def amdahl(first: float, *, serial: float, most: int) -> Curve:
    """A stated curve by Amdahl's law, from the samples / s of one peer and a serial share.

    >>> [round(one) for one in amdahl(100.0, serial=0.1, most=3).throughput.values()]
    [100, 182, 250]
    """
    table = {size: first * size / (1 + serial * (size - 1)) for size in range(1, most + 1)}
    return Curve(f"stated: Amdahl's law, serial share {serial:g}", table)


def filled(table: Mapping[int, float]) -> dict[int, float]:
    """The table with its missing sizes, interpolated linearly.

    >>> filled({1: 10.0, 3: 30.0})
    {1: 10.0, 2: 20.0, 3: 30.0}
    """
    return {size: between(table, size) for size in range(min(table), max(table) + 1)}


def majorant(table: Mapping[int, float]) -> dict[int, float]:
    """The least concave function that is never below the table.

    >>> majorant({1: 10.0, 2: 11.0, 3: 30.0})
    {1: 10.0, 2: 20.0, 3: 30.0}
    """
    corners: list[tuple[int, float]] = []
    for size in sorted(table):
        corner = (size, table[size])
        # Drop a corner on or below the line from its predecessor to the new corner.
        while len(corners) >= 2 and _slope(corners[-2], corner) >= _slope(corners[-2], corners[-1]):
            corners.pop()
        corners.append(corner)
    return {size: between(dict(corners), size) for size in sorted(table)}


def between(table: Mapping[int, float] | Mapping[float, float], x: float) -> float:
    """The value at x, interpolated linearly between the neighbouring entries."""
    known = {float(one): value for one, value in table.items()}
    if x in known:
        return known[x]
    below, above = max(one for one in known if one < x), min(one for one in known if one > x)
    return known[below] + (known[above] - known[below]) * (x - below) / (above - below)


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


def best_size(curve: Curve, *, efficiency: float, unit: int = 1, start: int | None = None) -> int:
    """The size at which the paper's schedule stops on a curve without noise: up from the start, or else down.

    The start is the least size by default. On a curve with dips, each start may have another best size.

    >>> stops = Curve("stops", {1: 100.0, 2: 190.0, 3: 200.0, 4: 400.0})
    >>> [best_size(stops, efficiency=0.25, start=one) for one in (1, 2, 3, 4)]
    [2, 2, 4, 4]
    """
    size, table = curve.least if start is None else start, curve.throughput

    def pays(fewer: int) -> bool:
        """True if `unit` peers more than ``fewer`` have more than the required efficiency."""
        return (table[fewer + unit] - table[fewer]) / unit / (table[fewer] / fewer) > efficiency

    top = size
    while top + unit in table and pays(top):
        top += unit
    if top > size:
        return top
    while size - unit in table and not pays(size - unit):
        size -= unit
    return size
