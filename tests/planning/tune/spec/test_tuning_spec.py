"""Reading specifications: what they give, and where their mistakes are said to be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu_planning import units
from kungfu_planning.tune import Latency, Stage, parse_spec, read_spec, successive_halving, tuning_schema

EXAMPLE = Path(__file__).parents[4] / "examples" / "tuning.yaml"
LEAST = """\
experiment:
  method: successive-halving
  trials: 32
  least_iterations: 1
  most_iterations: 50
  eta: 3
scaling:
  seconds_per_iteration: {1: 90 s, 4: 31 s}
cloud:
  gpus_per_instance: 4
  price: $12.24/h
"""


def test_the_shipped_example_is_the_job_that_it_says() -> None:
    spec = read_spec(EXAMPLE)
    assert spec.experiments == (successive_halving(32, least=1, most=50, eta=3),)
    assert (spec.scaling.gpus, spec.scaling.seconds) == ((1, 2, 4, 8, 16), (90, 50, 31, 22, 17))
    assert (spec.cloud.delays.scale, spec.cloud.delays.sync) == (Latency(15), Latency(0))
    assert spec.cloud.data.gigabytes == pytest.approx(0.15)


def test_what_is_left_out_has_the_default_that_the_table_shows() -> None:
    spec = parse_spec(LEAST)
    assert (spec.cloud.instance.minimum_s, spec.cloud.billing, spec.cloud.packing) == (60, "instance", "counted")
    assert (spec.search.multiples, spec.search.steps, spec.search.max_gpus) == ((1, 2, 3), "instance", None)
    assert (spec.samples, spec.seed, spec.scaling.sigma_s) == (20, 0, 0)


def test_everything_can_be_set() -> None:
    more = """\
  minimum_billing: 0 s
  billing: function
  packing: placed
  scale_latency: {mean: 15 s, sigma: 3 s}
  startup_latency: {mean: 2 s}
data: {size: 150 GB, price: $0.01/GB}
search: {max_gpus: 64, warm_starts: [1, 4], steps: literal, samples: 7, seed: 5}
"""
    spec = parse_spec(LEAST.replace("4: 31 s}", "4: 31 s}\n  sigma: 2 s") + more)
    assert (spec.cloud.billing, spec.cloud.packing, spec.cloud.instance.minimum_s) == ("function", "placed", 0)
    assert (spec.cloud.delays.scale, spec.cloud.delays.startup) == (Latency(15, 3), Latency(2))
    assert spec.cloud.data.dollars == pytest.approx(1.5)
    assert (spec.search.max_gpus, spec.search.multiples, spec.search.steps) == (64, (1, 4), "literal")
    assert (spec.samples, spec.seed, spec.scaling.sigma_s) == (7, 5, 2)


def test_hyperband_gives_a_simulator_for_each_bracket() -> None:
    text = LEAST.replace("successive-halving", "hyperband").replace("  trials: 32\n", "")
    firsts = [each.experiment.stages[0] for each in parse_spec(text).simulators()]
    assert firsts == [Stage(27, 1), Stage(12, 5), Stage(6, 16), Stage(4, 50)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trials: 32", "trails: 32", "SPEC.yaml:3: experiment.trails is not known; did you mean trials?"),
        ("cloud:", "clouds:", "SPEC.yaml:10: clouds is not known; did you mean cloud?"),
        ("trials: 32", "trials: 3.5", "SPEC.yaml:3: experiment.trials is '3.5'; give a whole number of at least 1"),
        ("trials: 32", "trials: [32]", "SPEC.yaml:3: experiment.trials is a list; give a single value"),
        ("trials: 32", "trials:", "SPEC.yaml:3: experiment.trials is empty; give a whole number"),
        ("  trials: 32\n", "", "SPEC.yaml:2: experiment cannot be planned: successive-halving has no trials"),
        ("eta: 3", "eta: 1", "SPEC.yaml:6: experiment.eta is '1'; give a whole number of at least 2"),
        ("most_iterations: 50", "most_iterations: 0", "SPEC.yaml:5: experiment.most_iterations is '0'"),
        (
            "least_iterations: 1",
            "least_iterations: 60",
            "SPEC.yaml:2: experiment cannot be planned: most iterations R is 50",
        ),
        ("eta: 3", "eta: 3\n  eta: 2", "SPEC.yaml:7: experiment.eta is given twice"),
        (
            "successive-halving",
            "asha",
            "SPEC.yaml:2: experiment.method is 'asha'; give 'successive-halving' or 'hyperband'",
        ),
        (
            "$12.24/h",
            "$0/h",
            "SPEC.yaml:11: cloud.price is '$0/h'; every plan would cost the same: give a price above 0",
        ),
        (
            "$12.24/h",
            "12.24",
            "SPEC.yaml:11: cloud.price is wrong: '12.24' is not a price of an instance; write \"$12.24/h\"",
        ),
        ("$12.24/h", "{a: 1}", "SPEC.yaml:11: cloud.price is a mapping; give a single value"),
        ("  price: $12.24/h\n", "", "SPEC.yaml:10: cloud lacks cloud.price: price of one instance"),
        (
            "4: 31 s",
            "4: 0 s",
            "SPEC.yaml:8: scaling.seconds_per_iteration.4 is '0 s'; an iteration takes more than 0 s",
        ),
        ("4: 31 s", "4: ", "SPEC.yaml:8: scaling.seconds_per_iteration.4 is wrong: '' is not a duration"),
        ("4: 31 s", "four: 31 s", "SPEC.yaml:8: scaling.seconds_per_iteration.four is for 'four' GPUs"),
        (
            "{1: 90 s, 4: 31 s}",
            "{}",
            "SPEC.yaml:8: scaling.seconds_per_iteration is empty; give measured time of an iteration",
        ),
        ("{1: 90 s, 4: 31 s}", "90 s", "SPEC.yaml:8: scaling.seconds_per_iteration is '90 s'; give keys and values"),
        ("price:", "init_latency: {men: 3 s}\n  price:", "SPEC.yaml:11: cloud.init_latency.men is not known"),
        (
            "price:",
            "init_latency: {sigma: 3 s}\n  price:",
            "SPEC.yaml:11: cloud.init_latency lacks cloud.init_latency.mean: its mean; write {mean: 15 s",
        ),
        ("price:", "init_latency: [3 s]\n  price:", "SPEC.yaml:11: cloud.init_latency is a list"),
        ("cloud:", "search: {warm_starts: 2}\ncloud:", "SPEC.yaml:9: search.warm_starts is '2'; give a list"),
        ("cloud:", "search: {warm_starts: [0]}\ncloud:", "SPEC.yaml:9: search.warm_starts[0] is '0'"),
        ("cloud:", "search: {warm_starts: []}\ncloud:", "SPEC.yaml:9: search.warm_starts is empty"),
        ("cloud:", "? [a, b]\n: 3\ncloud:", "SPEC.yaml:9: the specification has a key that is a list or a mapping"),
        ("method:", "method: [", "SPEC.yaml:3:9: not YAML"),
        ("successive-halving", "hyperband", "hyperband chooses its own trials, but trials is 32"),
    ],
)
def test_a_mistake_is_named_with_its_line_its_value_and_what_to_write(old: str, new: str, message: str) -> None:
    assert old in LEAST
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_spec(LEAST.replace(old, new, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[1]", "is a list"),
        ("scaling: {}", r"lacks experiment: the search, as \{method: hyperband, .*; cloud: the provider, as"),
    ],
)
def test_a_file_that_is_no_specification_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_spec(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the specification .*nowhere\.yaml"):
        read_spec(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"cannot read the specification .*binary\.yaml"):
        read_spec(tmp_path / "binary.yaml")


SCHEMA = tuning_schema()
SECTIONS = {name: SCHEMA["$defs"][key["$ref"].rsplit("/", 1)[-1]] for name, key in SCHEMA["properties"].items()}


def test_the_schema_knows_every_section_and_which_a_search_must_have() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["additionalProperties"] is False
    assert list(SECTIONS) == ["experiment", "scaling", "cloud", "data", "search"]
    assert SCHEMA["required"] == ["experiment", "scaling", "cloud"]


REQUIRED = {
    "experiment": ["method", "least_iterations", "most_iterations", "eta"],
    "scaling": [],
    "cloud": ["gpus_per_instance", "price"],
    "data": [],
    "search": [],
}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_schema_knows_every_key_of_a_section_and_only_those(name: str) -> None:
    section = SECTIONS[name]
    assert section["additionalProperties"] is False
    assert section.get("required", []) == REQUIRED[name]
    with pytest.raises(UsageError, match="nonsense is not known; known here: " + ", ".join(section["properties"])):
        parse_spec(_with({name: ["  nonsense: 1"]}))


def test_each_key_in_the_schema_has_a_meaning_and_the_values_that_the_reader_takes() -> None:
    keys = {f"{name}.{key}": each for name, part in SECTIONS.items() for key, each in part["properties"].items()}
    assert all(each["description"] for each in keys.values())
    assert keys["experiment.eta"]["minimum"] == 2
    assert (keys["experiment.trials"]["type"], keys["experiment.trials"]["minimum"]) == ("integer", 1)
    assert keys["search.seed"]["minimum"] == 0
    assert keys["cloud.billing"]["enum"] == ["instance", "function"]
    assert keys["cloud.minimum_billing"]["pattern"] == units.DURATION
    assert keys["cloud.price"]["pattern"] == units.RATE
    assert list(keys["scaling.seconds_per_iteration"]["patternProperties"]) == ["^[1-9][0-9]{0,8}$"]
    assert keys["search.warm_starts"]["minItems"] == 1
    assert len(keys["cloud.init_latency"]["oneOf"]) == 2


def test_a_default_that_the_schema_shows_reads_as_the_default() -> None:
    lines = {
        name: [f"  {key}: {each['default']}" for key, each in part["properties"].items() if "default" in each]
        for name, part in SECTIONS.items()
    }
    assert sum(map(len, lines.values())) == 14
    assert parse_spec(_with(lines)) == parse_spec(LEAST)


def test_an_alias_is_read_as_what_it_stands_for_and_never_in_a_circle() -> None:
    text = LEAST.replace("{1: 90 s", "{1: &slow 90 s").replace("4: 31 s", "4: *slow")
    assert parse_spec(text).scaling.seconds == (90, 90)
    with pytest.raises(UsageError, match=r"SPEC.yaml:9: search.warm_starts\[0\] contains itself by an alias"):
        parse_spec(LEAST.replace("cloud:", "search: {warm_starts: &all [*all]}\ncloud:"))


def test_aliases_of_aliases_do_not_multiply() -> None:
    bomb = "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 60))
    with pytest.raises(UsageError, match=r"SPEC.yaml:\d+: search.a0 is not known"):
        parse_spec(LEAST + "search:\n  a0: &a0 [1]\n" + bomb)


def _with(lines: dict[str, list[str]]) -> str:
    """LEAST with more lines in its sections."""
    text = LEAST
    for name, more in lines.items():
        body = "\n".join(more)
        text = text.replace(f"{name}:\n", f"{name}:\n{body}\n") if f"{name}:\n" in text else f"{text}{name}:\n{body}\n"
    return text
