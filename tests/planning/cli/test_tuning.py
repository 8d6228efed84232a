"""``kungfu plan tuning`` as a user meets it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
import pytest

from kungfu.cli.main import main
from kungfu.errors import UsageError
from kungfu_planning.cli.tuning import add_arguments, run
from kungfu_planning.tune.comparison import TuningReport

EXAMPLE = Path(__file__).parents[3] / "examples" / "tuning.yaml"


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


def test_the_tables_show_the_stages_and_the_costs_beside_the_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(EXAMPLE), "--deadline", "20m") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    rows = [line.replace("|", " ").split() for line in shown.out.splitlines()]
    assert ["0", "32", "2", "64", "16", "0:00", "1:20"] in rows
    assert ["planned", "19:45", "$16.30", "68%"] in rows
    assert ["static", "19:47", "$23.92", "100%"] in rows
    assert ["naive", "elastic", "18:50", "$25.65", "107%"] in rows


def test_json_holds_the_same_and_nothing_else_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(EXAMPLE), "--deadline", "20m", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["deadline_s"] == 1200
    assert (found["version"], found["confidence"], found["fresh_runs"]) == (1, None, 1)
    planned = found["planned"]
    assert (planned["seconds"], planned["seconds_p95"], planned["late_share"]) == (1185, 1185, 0)
    assert planned["dollars"] == planned["dollars_p50"] == pytest.approx(16.2964, abs=1e-4)
    assert found["settings"]["cloud"]["instance"]["gpus"] == 4
    stages = found["experiments"][0]["planned"]["stages"]
    assert [stage["gpus"] for stage in stages] == [64, 40, 24, 8]
    assert stages[-1]["end_s"] == found["planned"]["seconds"]


RANDOM = EXAMPLE.read_text().replace("\ncloud:", "  sigma: 20 s\n\ncloud:")


def test_without_a_confidence_the_mean_meets_the_deadline_and_late_runs_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(RANDOM)
    words = (str(tmp_path / "spec.yaml"), "--deadline", "30m")
    assert _run(*words, "--json") == 0
    mean = json.loads(capsys.readouterr().out)
    assert _run(*words, "--confidence", "0.95", "--json") == 0
    sure = json.loads(capsys.readouterr().out)
    assert (mean["deadline_holds"], sure["deadline_holds"]) == ("in the mean", "in the share of runs")
    assert mean["planned"]["seconds"] <= 1800 < mean["planned"]["seconds_p95"]
    assert mean["planned"]["late_share"] > 0.2
    assert sure["planned"]["late_share"] <= 0.05 + 0.01
    assert sure["planned"]["dollars"] > mean["planned"]["dollars"]
    assert mean["fresh_runs"] == 2000
    low, high = mean["planned"]["dollars_by_seed"]
    assert low < high
    assert _run(*words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Within 30:00 in the mean" in shown
    assert f"{mean['planned']['late_share']:.1%}" in shown
    assert f"mean cost by seed ${low:.2f} to ${high:.2f}" in shown.replace("\n", " ")
    assert _run(*words, "--confidence", "0.95") == 0
    assert "Within 30:00 in 0.95 of the runs" in " ".join(capsys.readouterr().out.split())


def test_the_schema_of_the_output_fits_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--schema", "output") == 0
    schema = json.loads(capsys.readouterr().out)
    assert _run(str(EXAMPLE), "--deadline", "20m", "--json") == 0
    found = capsys.readouterr().out
    assert set(schema["$defs"]["TuningReport"]["properties"]) == set(json.loads(found))
    assert msgspec.json.decode(found, type=TuningReport).planned.seconds == 1185


def test_a_baseline_that_cannot_meet_the_deadline_is_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = EXAMPLE.read_text() + "search: {max_gpus: 31}\n"
    (tmp_path / "spec.yaml").write_text(text)
    assert _run(str(tmp_path / "spec.yaml"), "--deadline", "20m", "--json") == 0
    assert json.loads(capsys.readouterr().out)["naive"] is None
    assert _run(str(tmp_path / "spec.yaml"), "--deadline", "20m") == 0
    assert "none meets it" in capsys.readouterr().out


def test_brackets_of_hyperband_add_their_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLE.read_text().replace("method: successive-halving", "method: hyperband").replace("  trials: 32\n", "")
    (tmp_path / "spec.yaml").write_text(text)
    assert _run(str(tmp_path / "spec.yaml"), "--deadline", "40m", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    each = [experiment["planned"] for experiment in found["experiments"]]
    assert len(each) == 4
    assert found["planned"]["dollars"] == pytest.approx(sum(plan["dollars"] for plan in each))
    assert found["planned"]["seconds"] == max(plan["seconds"] for plan in each)
    assert _run(str(tmp_path / "spec.yaml"), "--deadline", "40m") == 0
    assert "Plan of bracket 4 of 4" in capsys.readouterr().out


@pytest.mark.slow
def test_the_picture_is_written_where_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    assert _run(str(EXAMPLE), "--deadline", "20m", "--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [picture]
    assert f"plot: {picture}" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nowhere/plan.png", "plan.what"])
def test_a_picture_that_cannot_be_written_leaves_nothing_half_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot draw to"):
        _run(str(EXAMPLE), "--deadline", "20m", "--plot", str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no specification is given"),
        ([str(EXAMPLE)], "no deadline is given"),
        ([str(EXAMPLE), "--deadline", "20"], "'20' is not a duration"),
        ([str(EXAMPLE), "--deadline", "20m", "--confidence", "95"], "a confidence of 95 cannot be planned for"),
        ([str(EXAMPLE), "--deadline", "0 s"], "the deadline is '0 s'"),
        ([str(EXAMPLE), "--deadline", "9" * 400 + "d"], "is larger than any number that is computed with"),
        (["nowhere.yaml", "--deadline", "20m"], "cannot read the specification nowhere.yaml"),
    ],
)
def test_what_is_missing_or_wrong_is_said(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _run(*words)


DEEP = {
    "lists": "experiment: " + "[" * 20_000 + "]" * 20_000,
    "mappings": "experiment: " + "{a: " * 5_000 + "1" + "}" * 5_000,
    "indented": "\n".join(" " * depth + "a:" for depth in range(3_000)),
}


@pytest.mark.parametrize("kind", DEEP)
def test_yaml_that_is_nested_too_deeply_is_one_line_and_code_2(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.yaml").write_text(DEEP[kind])
    assert main(["plan", "tuning", str(tmp_path / "deep.yaml"), "--deadline", "20m"]) == 2
    says = capsys.readouterr().err
    assert "lists and mappings lie too deep in each other to be read" in says
    assert says.count("\n") == 1


def test_a_number_of_thousands_of_digits_is_refused_in_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = EXAMPLE.read_text().replace("gpus_per_instance: 4", "gpus_per_instance: " + "9" * 5000)
    (tmp_path / "long.yaml").write_text(text)
    assert main(["plan", "tuning", str(tmp_path / "long.yaml"), "--deadline", "20m"]) == 2
    says = capsys.readouterr().err
    assert "cloud.gpus_per_instance is '9999" in says
    assert "(5000 characters)'; give a whole number of at least 1" in says
    assert (says.count("\n"), len(says) < 300) == (1, True)


PROFILED = EXAMPLE.read_text().partition("\nscaling:")[0] + "\nscaling: {samples_per_iteration: 64}\ncloud:"
PROFILED += EXAMPLE.read_text().partition("\ncloud:")[2]


@pytest.mark.parametrize("sizes", [(), ("--profile-sizes", "1:2")])
@pytest.mark.parametrize(
    ("spec", "words", "message"),
    [
        (EXAMPLE.read_text(), (), "seconds_per_iteration and a profile that is to be measured say it twice"),
        (PROFILED, ("--confidence", "95"), "a confidence of 95 cannot be planned for"),
        (PROFILED, ("--deadline", "0s"), "the deadline is '0s'"),
        (PROFILED + "\nprice: 3\n", (), "price is not known"),
        (PROFILED.replace("trials: 32\n", "eta: 3\n"), (), "eta"),
        (PROFILED.replace("method: successive-halving", "method: hyperband"), (), "hyperband chooses its own trials"),
        (PROFILED.replace("_iteration: 64", "_iteration: 64, sigma: 1 s") + "\nsearch: {samples: 9999999}", (), "runs"),
    ],
)
def test_whatever_is_wrong_is_said_before_a_program_is_measured(
    spec: str, words: tuple[str, ...], message: str, sizes: tuple[str, ...], tmp_path: Path, measured: list[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(spec)
    with pytest.raises(UsageError, match=message):
        _run(str(tmp_path / "spec.yaml"), "--deadline", "20m", "--profile", "python train.py", *sizes, *words)
    assert measured == []


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that would have been measured; each fails."""
    commands: list[str] = []

    def measure(command: str, **_: object) -> Path:
        commands.append(command)
        raise UsageError("measured")

    monkeypatch.setattr("kungfu_planning.cli.tuning.measure", measure)
    return commands


@pytest.mark.parametrize(
    ("given", "is_command"),
    [
        ("python train.py --config c.json", True),
        ("train.py", True),
        ("./train", True),
        ("nowhere.json", False),
        ("measured", False),
        ("my measured.json", False),
    ],
)
def test_a_profile_is_a_file_where_it_is_one_word_that_names_one(
    given: str, is_command: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train", "measured", "my measured.json", "c.json"):
        Path(name).touch()
    Path("train").chmod(0o755)
    Path("spec.yaml").write_text(PROFILED)
    with pytest.raises(UsageError, match="measured" if is_command else "profile"):
        _run("spec.yaml", "--deadline", "20m", "--profile", given)
    assert measured == [given] * is_command


def test_the_schema_is_printed_without_a_specification(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "A hyperparameter search to be planned"


def test_a_profile_in_the_specification_is_planned_with_confidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [{"size": n, "samples_per_s": speed, "batch": 64} for n, speed in ((1, 2.0), (2, 3.6), (4, 6.0))]
    profile = {"version": 1, "program": ["a.py"], "attachment": "local", "sizes": sizes}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    spec = PROFILED.replace("iteration: 64", f"iteration: 64, sigma: 10 s, profile: {tmp_path / 'profile.json'}")
    (tmp_path / "spec.yaml").write_text(spec)
    words = (str(tmp_path / "spec.yaml"), "--deadline", "30m", "--json")
    assert _run(*words) == 0
    mean = json.loads(capsys.readouterr().out)
    assert _run(*words, "--confidence", "0.95") == 0
    sure = json.loads(capsys.readouterr().out)
    assert sure["settings"]["scaling"]["seconds"] == pytest.approx([32.0, 64 / 3.6, 64 / 6])
    assert (sure["confidence"], sure["deadline_holds"]) == (0.95, "in the share of runs")
    assert sure["planned"]["late_share"] <= 0.06
    assert sure["planned"]["dollars"] >= mean["planned"]["dollars"]
