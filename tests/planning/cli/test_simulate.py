"""``kungfu plan simulate`` from its arguments to what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kungfu.cli.main import main
from kungfu_planning.schedule.cluster_policies.catalogue import CATALOGUE


def _run(*words: str) -> int:
    return main(["plan", "simulate", *words])


@pytest.mark.parametrize("policy", CATALOGUE)
def test_every_policy_runs_by_name_and_reports_in_json(policy: str, capsys) -> None:
    assert _run("generated:elan:40", "--gpus", "32", "--policy", policy, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["policies"][policy]["overall"]["jobs"] == 40
    assert 0 < report["policies"][policy]["utilisation"] <= 1


def test_two_policies_are_compared(capsys) -> None:
    words = (
        "generated:itp:60:1:1.2",
        "--gpus",
        "64",
        "--policy",
        "elastic-tiresias",
        "--against",
        "tiresias",
        "--json",
    )
    assert _run(*words) == 0
    report = json.loads(capsys.readouterr().out)
    ours, theirs = (report["policies"][name]["overall"]["jct_s"] for name in ("elastic-tiresias", "tiresias"))
    assert report["reduction"]["jct"] == pytest.approx(1 - ours / theirs)


def test_the_table_names_every_class(capsys) -> None:
    assert _run("generated:elan:20", "--gpus", "16", "--policy", "ebf", "--against", "easy") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("ebf", "easy", "small", "median", "large", "ebf against easy: jct"))


@pytest.mark.slow
def test_a_plot_is_drawn_beside_the_figures(tmp_path: Path, capsys) -> None:
    path = tmp_path / "both.png"
    words = ("generated:elan:20", "--gpus", "16", "--policy", "efifo", "--against", "fifo", "--plot", str(path))
    assert _run(*words) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"plot: {path}" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere.csv", "--gpus", "4", "--policy", "fifo"), "nowhere.csv: expected a readable CSV file"),
        (("generated:elan:5", "--gpus", "0", "--policy", "fifo"), "0 GPUs"),
        (("generated:elan:many", "--gpus", "4", "--policy", "fifo"), "expected generated:SHAPE:JOBS"),
        (("generated:elan", "--gpus", "4", "--policy", "fifo"), "expected generated:SHAPE:JOBS"),
        (("generated:elan:5:0:1:2", "--gpus", "4", "--policy", "fifo"), "expected generated:SHAPE:JOBS"),
        (("generated:elan:5", "--gpus", "4", "--policy", "fifo", "--curves", "x"), "brings its own curves"),
        (("generated:cube:5", "--gpus", "4", "--policy", "fifo"), "no shape 'cube'"),
        (("generated:elan:5", "--gpus", "4", "--policy", "efifo", "--pause", "-1"), "pauses must be 0 to 1e+09 s"),
        (("generated:elan:5", "--gpus", "4", "--policy", "efifo", "--min-share", "2"), "shares 2.0 and 4.0"),
        (("generated:elan:5", "--gpus", "4", "--policy", "fifo", "--plot", "/nowhere/a.png"), "cannot write the plot"),
    ],
)
def test_what_cannot_work_is_said_on_standard_error_and_nothing_is_printed(words, says, capsys) -> None:
    assert _run(*words) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


NOT_USED = [
    ("fifo", "--pause", "1"),
    ("tiresias", "--pause-in", "1"),
    ("easy", "--overhead", "0.1"),
    ("ebf", "--quanta", "10,20"),
    ("efifo", "--starvation", "2"),
    ("tiresias", "--pending-over", "1"),
    ("elastic-tiresias", "--exact-up-to", "8"),
    ("first-fit", "--min-share", "0.5"),
    ("conservative", "--max-share", "2"),
]


@pytest.mark.parametrize(("policy", "option", "value"), NOT_USED)
def test_an_option_that_no_policy_looks_at_is_refused_with_those_that_do(policy, option, value, capsys) -> None:
    words = ("generated:elan:20", "--gpus", "16", "--policy", policy)
    assert _run(*words, option, value) == 2
    says = capsys.readouterr().err
    assert f"{option} is not used by {policy}: leave it out, or choose a policy that looks at it (" in says
    user = says.rpartition("(")[2].split(",")[0].strip(")\n ")
    assert _run("generated:elan:20", "--gpus", "16", "--policy", policy, "--against", user, option, value) == 0


def test_an_option_that_a_policy_is_said_to_look_at_can_change_its_figures(capsys) -> None:
    values = {
        "quanta": "50,100", "starvation": "0.01", "pending_over": "3", "exact_up_to": "1", "pause": "900",
        "pause_in": "900", "overhead": "0.3", "min_share": "1", "max_share": "1",
    }  # fmt: skip

    def figures(policy: str, *words: str) -> str:
        trace = ("generated:itp:120:1:1.5", "--gpus", "32", "--policy", policy, "--json")
        assert _run(*trace, *words) == 0
        return capsys.readouterr().out

    for policy, entry in CATALOGUE.items():
        usual = figures(policy)
        for option in entry.options:
            assert figures(policy, f"--{option.replace('_', '-')}", values[option]) != usual, (policy, option)


def test_a_job_whose_name_is_a_number_of_thousands_of_digits_is_scheduled(tmp_path: Path, capsys) -> None:
    names = ["9" * 5000, "10", "9", "009", "b"]
    rows = "".join(f"{name},0,2,10\n" for name in names)
    (tmp_path / "trace.csv").write_text("name,submit,gpus,duration\n" + rows)
    columns = "name=name,submit=submit,gpus=gpus,duration=duration"
    assert _run(str(tmp_path / "trace.csv"), "--columns", columns, "--gpus", "2", "--policy", "fifo", "--json") == 0
    assert json.loads(capsys.readouterr().out)["policies"]["fifo"]["overall"]["jobs"] == 5


@pytest.mark.parametrize(
    "words",
    [
        ("9" * 5000,),
        ("generated:itp:" + "9" * 5000,),
        ("generated:" + "9" * 5000 + ":20",),
        ("trace.csv", "--columns", "name=name,submit=submit,gpus=gpus,duration=duration,model=model,batch=batch",
         "--curves", "9" * 5000),
    ],
    ids=["trace", "jobs", "shape", "curves"],
)  # fmt: skip
def test_words_of_thousands_of_digits_are_refused_in_one_short_line(words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(*words, "--gpus", "8", "--policy", "fifo") == 2
    says = capsys.readouterr().err
    assert says.count("\n") == 1
    assert len(says) < 400


def test_quanta_that_are_no_numbers_are_a_wrong_argument(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        _run("generated:elan:5", "--gpus", "4", "--policy", "tiresias", "--quanta", "1,two")
    assert ended.value.code == 2
    assert "'1,two' is no list of numbers; write them as 10000,200000" in capsys.readouterr().err
