"""The sections and keys of a specification as pydantic models, with the values, meaning and default of each key.

Values are texts as written in the file (see `yaml_document`), and so are defaults. Every description completes the
sentence "give ...".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from kungfu.errors import UsageError
from kungfu_planning import units
from kungfu_planning.profile import check_profile, read_profile
from kungfu_planning.tune.cloud import Cloud, Dataset, Delays, Instance
from kungfu_planning.tune.experiment import Experiment, hyperband, successive_halving
from kungfu_planning.tune.latency import Latency, ScalingCurve, scaling

LAW = "law"
"""The tag in pydantic's locations for a latency given as a law."""


def shown(value: object) -> str:
    """The text or the kind of a value of the document, for messages.

    Args:
        value: A text, a list or a mapping.

    >>> shown("3.5"), shown(""), shown([])
    ("'3.5'", 'empty', 'a list')
    """
    if isinstance(value, str):
        return repr(value) if value else "empty"
    return "a list" if isinstance(value, list) else "a mapping"


def _refused(reason: str) -> PydanticCustomError:
    """The pydantic error for a wrong value; ``reason`` continues a sentence that begins with the key."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _refused(f"is {shown(value)}; give a single value")
    return value


def _unit(parse_unit: Callable[[str], float]) -> BeforeValidator:
    """A validator that reads a number with a unit by ``parse_unit``."""

    def read(value: object) -> float:
        text = _text(value)
        try:
            return parse_unit(text)
        except UsageError as error:
            raise _refused(f"is wrong: {error}") from error

    return BeforeValidator(read)


def _written(pattern: str, *, example: str) -> WithJsonSchema:
    """The JSON schema of a number with a unit: a text with ``pattern``."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


def _above_zero(advice: str) -> AfterValidator:
    def check(number: float) -> float:
        if number <= 0:
            raise PydanticCustomError("not_above_zero", "{advice}", {"advice": advice})
        return number

    return AfterValidator(check)


def _whole(least: int) -> BeforeValidator:
    """A validator that reads an integer of up to 12 digits, at least ``least``."""

    def read(value: object) -> int:
        text = _text(value)
        if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) < least:
            raise PydanticCustomError("not_whole", "{least}", {"least": least})
        return int(text)

    return BeforeValidator(read)


_Seconds = Annotated[float, _unit(units.duration_s), _written(units.DURATION, example="20m")]
_IterationSeconds = Annotated[_Seconds, _above_zero("an iteration takes more than 0 s")]
_DollarsPerSecond = Annotated[float, _unit(units.rate_per_s), _written(units.RATE, example="$12.24/h")]
_InstancePrice = Annotated[_DollarsPerSecond, _above_zero("every plan would cost the same: give a price above 0")]
_Gigabytes = Annotated[float, _unit(units.size_gb), _written(units.SIZE, example="150 GB")]
_DollarsPerGigabyte = Annotated[float, _unit(units.per_gb), _written(units.PER_GB, example="$0.01/GB")]
_Gpus = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}$")]
_Index = Annotated[int, Field(ge=0), _whole(0)]
_Word = Annotated[str, BeforeValidator(lambda value: _text(value))]
_Count = Annotated[int, Field(ge=1), _whole(1)]
_Factor = Annotated[int, Field(ge=2), _whole(2)]


class Section(BaseModel):
    """A mapping of the document; an unknown key is an error."""

    # Errors hide their input: nested aliases in a small file can expand to a huge text.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _left_out(schema: dict[str, Any]) -> None:
    """Removes the default from the schema of a key: this default marks an omitted key, and cannot be written."""
    del schema["default"]


class LatencyLaw(Section):
    """A random latency, from a normal distribution truncated at 0."""

    mean: _Seconds = Field(description='its mean; write {mean: 15 s, sigma: 3 s}, or one duration such as "15 s"')
    sigma: _Seconds = Field("0 s", validate_default=True, description="its standard deviation before truncation")


_Latency = Annotated[
    Annotated[_Seconds, Tag("constant")] | Annotated[LatencyLaw, Tag(LAW)],
    Discriminator(lambda value: LAW if isinstance(value, dict) else "constant"),
]


class ExperimentSection(Section):
    """The search: an early-stopping method and its parameters."""

    method: Literal["successive-halving", "hyperband"] = Field(description="the early-stopping method")
    trials: _Count | SkipJsonSchema[None] = Field(
        None, json_schema_extra=_left_out, description="n, trials of the first stage; only for successive-halving"
    )
    least_iterations: _Count = Field(description="r, iterations of the first stage")
    most_iterations: _Count = Field(description="R, total iterations of a survivor")
    eta: _Factor = Field(description="the best 1/eta of the trials survive a stage")

    def experiments(self) -> tuple[Experiment, ...]:
        """The experiments: one for successive halving, one per bracket for Hyperband."""
        least, most = self.least_iterations, self.most_iterations
        if self.method == "hyperband":
            if self.trials is not None:
                raise UsageError(f"hyperband chooses its own trials, but trials is {self.trials}; leave trials out")
            return hyperband(most, least=least, eta=self.eta)
        if self.trials is None:
            raise UsageError("successive-halving has no trials; give the trials of the first stage, as trials: 32")
        return (successive_halving(self.trials, least=least, most=most, eta=self.eta),)


class ScalingSection(Section):
    """The time of a trial's iteration by GPUs."""

    # An omitted key is empty: with None in each type, errors would not show the wrong key.
    seconds_per_iteration: dict[_Gpus, _IterationSeconds] = Field(
        {},
        min_length=1,
        json_schema_extra=_left_out,
        description="measured time of an iteration by GPUs of the trial, as {1: 90 s, 4: 31 s}",
    )
    profile: _Word = Field(
        "",
        json_schema_extra=_left_out,
        description="instead of it a profile.json of `kungfu profile`, beside this file or by its whole path",
    )
    samples_per_iteration: _Count = Field(
        0,
        json_schema_extra=_left_out,
        description="samples of an iteration, as those of an epoch; left out: a step, the batch of the profile",
    )
    program: _Word = Field(
        "", json_schema_extra=_left_out, description="words that the command of the profile has to contain"
    )
    batch: _Count = Field(
        0, json_schema_extra=_left_out, description="the batch that the profile has to have, of all peers together"
    )
    attachment: Literal["local", "horovod"] | Literal[""] = Field(
        "", json_schema_extra=_left_out, description="the all-reduce that the profile has to have"
    )
    sigma: _Seconds = Field("0 s", validate_default=True, description="standard deviation of one iteration")

    def scaling(self, *, folder: Path, profile: Path | None = None) -> ScalingCurve:
        """The scaling curve through the measured points.

        Args:
            folder: the folder of the document, for the file of the key ``profile``.
            profile: a profile to use instead of the profile that the document names.
        """
        named = profile or (folder / self.profile if self.profile else None)
        if named is None:
            return self._by_seconds()
        self._refuse_seconds(f"the profile {named}")
        found = read_profile(named).at_batch(self.batch or None, where=str(named))
        check_profile(
            found,
            where=str(named),
            program=self.program or None,
            batch=self.batch or None,
            attachment=self.attachment or None,
        )
        samples = self.samples_per_iteration or found.batch
        if samples is None:
            raise UsageError(
                f"{named} has another batch for each size; give samples_per_iteration, as those of an epoch"
            )
        return scaling({size: samples / speed for size, speed in found.points.items()}, sigma_s=self.sigma)

    def unmeasured(self) -> ScalingCurve:
        """A placeholder of 1 s per iteration, for the curve of a profile that is not measured yet."""
        self._refuse_seconds("a profile that is to be measured")
        return scaling({1: 1.0}, sigma_s=self.sigma)

    def _refuse_seconds(self, beside: str) -> None:
        if self.seconds_per_iteration:
            raise UsageError(f"seconds_per_iteration and {beside} say it twice; leave one of them out")

    def _by_seconds(self) -> ScalingCurve:
        of_profile = {
            "samples_per_iteration": self.samples_per_iteration,
            "program": self.program,
            "batch": self.batch,
            "attachment": self.attachment,
        }
        if not self.seconds_per_iteration:
            raise UsageError("there is neither seconds_per_iteration, as {1: 90 s, 4: 31 s}, nor a profile; give one")
        if unused := [name for name, value in of_profile.items() if value]:
            raise UsageError(f"{', '.join(unused)} speaks of a profile, and there is none; leave it out")
        return scaling({int(gpus): s for gpus, s in self.seconds_per_iteration.items()}, sigma_s=self.sigma)


class DataSection(Section):
    """The data that every new instance fetches, and its price."""

    size: _Gigabytes = Field("0 GB", validate_default=True, description="data that every new instance fetches once")
    price: _DollarsPerGigabyte = Field("$0/GB", validate_default=True, description="price of fetching it")


class CloudSection(Section):
    """The provider: its instances, its bill, its delays."""

    gpus_per_instance: _Count = Field(description="GPUs of one instance")
    price: _InstancePrice = Field(description="price of one instance")
    minimum_billing: _Seconds = Field("60 s", validate_default=True, description="minimum billed time of an instance")
    billing: Literal["instance", "function"] = Field(
        "instance", description="unit of billing: instances held, or GPUs used"
    )
    packing: Literal["counted", "placed"] = Field(
        "counted", description="instances of a stage: GPUs counted, or trials kept whole"
    )
    scale_latency: _Latency = Field("0 s", validate_default=True, description="the provider's queue, not billed")
    init_latency: _Latency = Field("0 s", validate_default=True, description="set-up of a new instance, billed")
    startup_latency: _Latency = Field("0 s", validate_default=True, description="start of a trial in a stage")
    sync_latency: _Latency = Field(
        "0 s", validate_default=True, description="synchronisation of all trials at the end of a stage"
    )

    def cloud(self, data: DataSection) -> Cloud:
        """The provider that this section and ``data`` describe, for the simulator."""
        laws = (self.scale_latency, self.init_latency, self.startup_latency, self.sync_latency)
        latencies = [Latency(law.mean, law.sigma) if isinstance(law, LatencyLaw) else Latency(law) for law in laws]
        return Cloud(
            Instance(self.gpus_per_instance, self.price, self.minimum_billing),
            Delays(*latencies),
            Dataset(data.size, data.price),
            self.billing,
            self.packing,
        )


class SearchSection(Section):
    """The limits and settings of the planner."""

    max_gpus: _Count | SkipJsonSchema[None] = Field(
        None, json_schema_extra=_left_out, description="most GPUs of any stage; default: all that the trials can use"
    )
    warm_starts: tuple[_Count, ...] = Field(
        (1, 2, 3), min_length=1, description="multiples of the best static size to start from"
    )
    steps: Literal["instance", "literal"] = Field("instance", description="size of one greedy step")
    samples: _Count = Field(20, description="simulated runs per plan when something is random")
    seed: _Index = Field(0, description="seed of those runs")


class Document(Section):
    """A specification: the search, its scaling, the cloud, its data, and the settings of the planner."""

    model_config = ConfigDict(title="A hyperparameter search to be planned")

    experiment: ExperimentSection = Field(
        description="the search, as {method: hyperband, least_iterations: 1, most_iterations: 50, eta: 3}"
    )
    scaling: ScalingSection = Field(
        description="speed of a trial by its GPUs, as {seconds_per_iteration: {1: 90 s, 4: 31 s}}"
    )
    cloud: CloudSection = Field(description="the provider, as {gpus_per_instance: 4, price: $12.24/h}")
    data: DataSection = Field(default_factory=lambda: DataSection.model_validate({}))
    search: SearchSection = Field(default_factory=lambda: SearchSection.model_validate({}))
