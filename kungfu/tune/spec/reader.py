"""From a SPEC.yaml to what the planner takes; every mistake is named with its file and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kungfu.errors import UsageError
from kungfu.tune.model import (
    Cloud,
    Dataset,
    Delays,
    Experiment,
    Instance,
    Scaling,
    hyperband,
    scaling,
    successive_halving,
)
from kungfu.tune.plan import Search
from kungfu.tune.simulate import Simulator
from kungfu.tune.spec.entries import Entry, load, mapping, refuse, root
from kungfu.tune.spec.sections import REQUIRED, SECTIONS, Key

__all__ = ["TuningSpec", "parse_spec", "read_spec"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class TuningSpec:
    """A specification as read: one experiment for successive halving, one a bracket for Hyperband."""

    experiments: tuple[Experiment, ...]
    scaling: Scaling
    cloud: Cloud
    search: Search
    samples: int
    seed: int

    def simulators(self) -> tuple[Simulator, ...]:
        """A simulator of each experiment."""
        return tuple(Simulator(each, self.scaling, self.cloud, self.samples, self.seed) for each in self.experiments)


def read_spec(path: Path) -> TuningSpec:
    """The specification in a file. Raises: UsageError that names the file and line of what is wrong."""
    return _build(load(path))


def parse_spec(content: str, *, file: str = "SPEC.yaml") -> TuningSpec:
    """The specification in a text; ``file`` is its name in messages.

    >>> spec = parse_spec('''
    ... experiment: {method: successive-halving, trials: 32, least_iterations: 1, most_iterations: 50, eta: 3}
    ... scaling: {seconds_per_iteration: {1: 90 s, 4: 31 s}}
    ... cloud: {gpus_per_instance: 4, price: $12.24/h}
    ... ''')
    >>> spec.cloud.instance.gpus, round(spec.cloud.instance.dollars_per_s, 6), spec.cloud.billing
    (4, 0.0034, 'instance')
    """
    return _build(root(content, file=file))


def _build(top: Entry) -> TuningSpec:
    given = mapping(top)
    _check_names(given, known=SECTIONS)
    values = {name: _section(given.get(name), name=name, keys=keys, top=top) for name, keys in SECTIONS.items()}
    search = values["search"]
    return TuningSpec(
        _located(given["experiment"], build=lambda: _experiments(values["experiment"])),
        _located(given["scaling"], build=lambda: _scaling(values["scaling"])),
        _located(given["cloud"], build=lambda: _cloud(values["cloud"], data=values["data"])),
        Search(max_gpus=search["max_gpus"], multiples=search["warm_starts"], steps=search["steps"]),
        search["samples"],
        search["seed"],
    )


def _section(entry: Entry | None, *, name: str, keys: Mapping[str, Key], top: Entry) -> Values:
    given = {} if entry is None else mapping(entry)
    _check_names(given, known=keys)
    missing = [key for key, what in keys.items() if what.default is REQUIRED and key not in given]
    if missing:
        lines = "; ".join(f"{name}.{key}: {keys[key].meaning}" for key in missing)
        raise refuse(entry or top, reason=f"lacks {lines}")
    return {key: what.kind.read(given[key]) if key in given else what.default for key, what in keys.items()}


def _check_names(given: Mapping[str, Entry], *, known: Mapping[str, object]) -> None:
    for name, entry in given.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            raise refuse(entry, reason=f"is not known; {hint}")


def _located(entry: Entry, *, build: Any) -> Any:
    """What ``build()`` gives; its error with the file and line of the section."""
    try:
        return build()
    except UsageError as error:
        raise refuse(entry, reason=f"cannot be planned: {error}") from error


def _experiments(given: Values) -> tuple[Experiment, ...]:
    least, most, eta = given["least_iterations"], given["most_iterations"], given["eta"]
    if given["method"] == "hyperband":
        if given["trials"] is not None:
            raise UsageError(f"hyperband chooses its own trials, but trials is {given['trials']}; leave trials out")
        return hyperband(most, least=least, eta=eta)
    if given["trials"] is None:
        raise UsageError("successive-halving has no trials; give the trials of the first stage, as trials: 32")
    return (successive_halving(given["trials"], least=least, most=most, eta=eta),)


def _scaling(given: Values) -> Scaling:
    return scaling(given["seconds_per_iteration"], sigma_s=given["sigma"])


def _cloud(given: Values, *, data: Values) -> Cloud:
    latencies = (given[f"{name}_latency"] for name in ("scale", "init", "startup", "sync"))
    return Cloud(
        Instance(given["gpus_per_instance"], given["price"], given["minimum_billing"]),
        Delays(*latencies),
        Dataset(data["size"], data["price"]),
        given["billing"],
        given["packing"],
    )
