"""The reader of specifications: converts a YAML text to the planner's input, or raises an error with file and line.

The models of `sections` check the document. Pydantic reports errors as data (a kind, a location, the value), which are
converted to messages here; the document adds file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kungfu.errors import UsageError
from kungfu_planning.tune.baselines import Search
from kungfu_planning.tune.cloud import Cloud
from kungfu_planning.tune.experiment import Experiment
from kungfu_planning.tune.latency import ScalingCurve
from kungfu_planning.tune.simulator import Simulator
from kungfu_planning.tune.spec.sections import LAW, Document, LatencyLaw, Section, shown
from kungfu_planning.tune.spec.yaml_document import YamlDocument, load_yaml, parse_yaml


@dataclass(frozen=True)
class TuningSpec:
    """A parsed specification, with one experiment for successive halving, and one per bracket for Hyperband."""

    experiments: tuple[Experiment, ...]
    scaling: ScalingCurve
    cloud: Cloud
    search: Search
    samples: int
    seed: int

    def simulators(self) -> tuple[Simulator, ...]:
        """A simulator for each experiment, with the scaling, cloud, samples and seed of the specification."""
        return tuple(Simulator(each, self.scaling, self.cloud, self.samples, self.seed) for each in self.experiments)


def read_spec(path: Path, *, profile: Path | None = None, measured_only: bool = False) -> TuningSpec:
    """The specification in a YAML file.

    Args:
        path: the file.
        profile: a profile.json by `kungfu profile`, which replaces the scaling in the file.
        measured_only: True if a trial uses measured numbers of GPUs only, instead of an interpolation.

    Raises:
        UsageError: The specification is invalid; the message has file and line.
    """
    return _checked(load_yaml(path), folder=path.parent, profile=profile, measured_only=measured_only)


def parse_spec(content: str, *, file: str = "SPEC.yaml", folder: Path = Path()) -> TuningSpec:
    """The specification in a YAML text.

    Args:
        content: YAML; ``kungfu plan tuning --schema`` prints the schema.
        file: the name of the file for messages.
        folder: the folder to which a relative path of a profile in the text refers.

    Raises:
        UsageError: The text cannot be planned; the message has file, line, key, value, and what to write.

    >>> spec = parse_spec('''
    ... experiment: {method: successive-halving, trials: 32, least_iterations: 1, most_iterations: 50, eta: 3}
    ... scaling: {seconds_per_iteration: {1: 90 s, 4: 31 s}}
    ... cloud: {gpus_per_instance: 4, price: $12.24/h}
    ... ''')
    >>> spec.cloud.instance.gpus, round(spec.cloud.instance.dollars_per_s, 6), spec.cloud.billing
    (4, 0.0034, 'instance')
    """
    return _checked(parse_yaml(content, file=file), folder=folder)


def tuning_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a specification, for editors and checkers.

    Returns:
        The schema as plain values for JSON.

    >>> tuning_schema()["$defs"]["CloudSection"]["required"]
    ['gpus_per_instance', 'price']
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Document.model_json_schema()}


def _checked(
    document: YamlDocument, *, folder: Path, profile: Path | None = None, measured_only: bool = False
) -> TuningSpec:
    given = _validated(document)
    curve = _located(document, "scaling", build=lambda: given.scaling.scaling(folder=folder, profile=profile))
    return _with_curve(given, document=document, curve=replace(curve, measured_only=measured_only))


def _with_curve(given: Document, *, document: YamlDocument, curve: ScalingCurve) -> TuningSpec:
    search = given.search
    return TuningSpec(
        _located(document, "experiment", build=given.experiment.experiments),
        curve,
        _located(document, "cloud", build=lambda: given.cloud.cloud(given.data)),
        Search(max_gpus=search.max_gpus, multiples=search.warm_starts, steps=search.steps),
        search.samples,
        search.seed,
    )


def _validated(document: YamlDocument) -> Document:
    try:
        return Document.model_validate(document.data)
    except ValidationError as error:
        raise _first_refusal(error, document=document) from error


_Built = TypeVar("_Built")


def _located(document: YamlDocument, section: str, *, build: Callable[[], _Built]) -> _Built:
    """Returns the result of ``build()``, and adds the section's file and line to an error."""
    try:
        return build()
    except UsageError as error:
        raise document.refusal([section], reason=f"cannot be planned: {error}") from error


# The messages for pydantic's errors.


def _first_refusal(error: ValidationError, *, document: YamlDocument) -> UsageError:
    """The error for one mistake: an unknown key if there is one, since a misspelt key is also reported as missing."""
    details = error.errors(include_url=False)
    first = min(details, key=lambda each: each["type"] != "extra_forbidden")
    if first["type"] == "missing":
        return document.refusal(first["loc"][:-1], reason=_lacking(first["loc"][:-1], details=details))
    return document.refusal(first["loc"], reason=_reason(first))


def _reason(detail: ErrorDetails) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), shown(detail["input"])
    if kind == "refused":
        return str(context["reason"])
    if kind == "extra_forbidden":
        return f"is not known; {_nearest(detail['loc'])}"
    if kind == "string_pattern_mismatch":
        return f"is for {value} GPUs; give whole numbers of at least 1"
    if kind == "too_short":
        return f"is empty; give {_field(detail['loc']).description}"
    return f"is {value}; {_ADVICE[kind].format(**context)}"


_ADVICE: Final[Mapping[str, str]] = {
    "dict_type": "give keys and values, one a line",
    "literal_error": "give {expected}",
    "model_type": "give keys and values, one a line",
    "not_above_zero": "{advice}",
    "not_whole": "give a whole number of at least {least}",
    "tuple_type": "give a list, as [1, 2, 3]",
}


def _nearest(location: tuple[int | str, ...]) -> str:
    known = list(_section(location[:-1]).model_fields)
    near = get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"


def _lacking(location: tuple[int | str, ...], *, details: list[ErrorDetails]) -> str:
    """The missing keys of the mapping at ``location``, with their meanings."""
    names = [each["loc"][-1] for each in details if each["type"] == "missing" and each["loc"][:-1] == location]
    path = "".join(f"{step}." for step in location if step != LAW)
    return "lacks " + "; ".join(f"{path}{name}: {_field((*location, name)).description}" for name in names)


def _field(location: tuple[int | str, ...]) -> FieldInfo:
    return _section(location[:-1]).model_fields[str(location[-1])]


def _section(location: tuple[int | str, ...]) -> type[Section]:
    """The pydantic model that describes the mapping at ``location``."""
    model: type[Section] = Document
    for step in location:
        field = model.model_fields.get(str(step))
        if step == LAW:
            model = LatencyLaw
        elif field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            model = field.annotation
    return model


def read_unmeasured(path: Path) -> TuningSpec:
    """Reads a specification whose scaling is not measured yet, with a placeholder of 1 s per iteration.

    Raises:
        UsageError: As from `read_spec`, or the file already has ``seconds_per_iteration``.
    """
    document = load_yaml(path)
    given = _validated(document)
    curve = _located(document, "scaling", build=given.scaling.unmeasured)
    return _with_curve(given, document=document, curve=curve)
