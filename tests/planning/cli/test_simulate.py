"""``kungfu plan simulate`` from its arguments to what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kungfu.cli.main import main
from kungfu_planning.schedule.cluster_policies.catalogue import CATALOGUE
from kungfu_planning.schedule.report import SimulationReport


def _run(*words: str) -> int:
    return main(["plan", "simulate", *words])


@pytest.mark.parametrize("policy", CATALOGUE)
def test_every_policy_runs_by_name_and_reports_in_json(policy: str, capsys) -> None:
    found = report(capsys, "generated:elan:40", "--gpus", "32", "--policy", policy)
    [run] = found["runs"]
    assert (run["summary"]["policy"], run["summary"]["overall"]["jobs"], found["version"]) == (policy, 40, 1)
    assert 0 < run["summary"]["utilisation"] <= 1
    assert found["settings"]["gpus"] == [32]


def test_two_policies_are_compared(capsys) -> None:
    words = ("generated:itp:60:1:1.2", "--gpus", "64", "--policy", "elastic-tiresias", "--against", "tiresias")
    found = report(capsys, *words)
    ours, theirs = (run["summary"]["overall"]["jct_s"] for run in found["runs"])
    assert found["reductions"][0]["jct"] == pytest.approx(1 - ours / theirs)


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
        (("generated:cube:5", "--gpus", "4", "--policy", "fifo"), "no shape 'cube'; there are philly, itp, elan"),
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
        "pause_in": "900", "resume": "900", "overhead": "0.3", "min_share": "1", "max_share": "1",
    }  # fmt: skip

    def figures(policy: str, *words: str) -> str:
        return json.dumps(report(capsys, "generated:itp:120:1:1.5", "--gpus", "32", "--policy", policy, *words)["runs"])

    for policy, entry in CATALOGUE.items():
        usual = figures(policy)
        for option in entry.options:
            assert figures(policy, f"--{option.replace('_', '-')}", values[option]) != usual, (policy, option)


def test_a_job_whose_name_is_a_number_of_thousands_of_digits_is_scheduled(tmp_path: Path, capsys) -> None:
    names = ["9" * 5000, "10", "9", "009", "b"]
    rows = "".join(f"{name},0,2,10\n" for name in names)
    (tmp_path / "trace.csv").write_text("name,submit,gpus,duration\n" + rows)
    columns = "name=name,submit=submit,gpus=gpus,duration=duration"
    words = (str(tmp_path / "trace.csv"), "--columns", columns, "--gpus", "2", "--policy", "fifo")
    assert report(capsys, *words)["jobs"] == 5


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


@pytest.mark.parametrize(
    ("option", "value", "example"),
    [("--quanta", "1,two", "10000,200000"), ("--gpus", ",", "64,128,256"), ("--load", "0.6;1", "0.6,0.8,1")],
)
def test_a_list_that_holds_no_numbers_is_a_wrong_argument(option, value, example, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        _run("generated:elan:5", "--policy", "tiresias", option, value)
    assert ended.value.code == 2
    assert f"{value!r} is no list of numbers; write them as {example}" in capsys.readouterr().err


def test_clusters_are_simulated_once_and_quanta_are_kept_as_they_are_given(capsys) -> None:
    words = ("generated:elan:5", "--gpus", "16,16", "--load", "1,1", "--policy", "tiresias")
    assert len(report(capsys, *words)["runs"]) == 1
    assert _run(*words, "--quanta", "60,60") == 2
    assert "quanta" in capsys.readouterr().err


def report(capsys, *words: str) -> dict:
    """What is printed, which has the form that the schema says."""
    assert _run(*words, "--json") == 0
    printed = capsys.readouterr().out
    msgspec.json.decode(printed, type=SimulationReport)
    return json.loads(printed)


def test_a_sweep_over_clusters_and_loads_answers_how_many_gpus_a_percentile_needs(capsys) -> None:
    words = ("generated:elan:200", "--gpus", "16,32,64", "--load", "0.6,1.2", "--policy", "fifo", "--p95", "2h")
    found = report(capsys, *words)
    cases = [(run["load"], run["summary"]["gpus"]) for run in found["runs"]]
    assert cases == [(load, gpus) for load in (0.6, 1.2) for gpus in (16, 32, 64)]
    p95_s = {case: run["summary"]["overall"]["jct_p95_s"] for case, run in zip(cases, found["runs"], strict=True)}
    for answer in found["answers"]:
        enough = [gpus for gpus in (16, 32, 64) if p95_s[answer["load"], gpus] <= 7200]
        assert answer["gpus"] == (min(enough) if enough else None)
    assert len(found["answers"]) == 2
    assert _run(*words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "95 % of jobs within 2h under fifo at load 0.6: " in shown
    never = report(capsys, *words[:-1], "1s")["answers"][0]
    assert (never["gpus"], never["jct_p95_s"]) == (None, min(p95_s[0.6, gpus] for gpus in (16, 32, 64)))


def test_the_load_of_a_file_moves_its_arrivals(tmp_path: Path, capsys) -> None:
    (tmp_path / "trace.csv").write_text("timestamp,num_gpus,duration\n0,2,100\n1000,2,100\n")
    alone, crowded = report(capsys, str(tmp_path / "trace.csv"), "--gpus", "2", "--load", "0.2,4", "--policy", "fifo")[
        "runs"
    ]
    assert alone["summary"]["overall"]["wait_s"] == 0
    assert crowded["summary"]["makespan_s"] == 200


def test_resuming_a_preempted_job_costs_what_is_said(tmp_path: Path, capsys) -> None:
    (tmp_path / "trace.csv").write_text("timestamp,num_gpus,duration\n0,2,100\n10,2,20\n")
    words = (str(tmp_path / "trace.csv"), "--gpus", "2", "--policy", "tiresias", "--quanta", "60")
    for resume, makespan_s in (((), 150), (("--resume", "0"), 120), (("--resume", "7"), 127)):
        assert report(capsys, *words, *resume)["runs"][0]["summary"]["makespan_s"] == makespan_s


SACCT = """JobID|User|Submit|Elapsed|AllocTRES
7|ann|2024-01-02T03:04:05|1-00:00:00|billing=8,cpu=16,gres/gpu=2,mem=64G,node=1
7.batch|ann|2024-01-02T03:04:05|1-00:00:00|cpu=16,mem=64G,node=1
8|"bob|2024-01-02T03:04:05|02:03|cpu=4,gres/gpu=1,gres/gpu:a100=1,mem=8G,node=1
9|bob|Unknown|00:10:00|cpu=4,gres/gpu=1
10|bob|2024-01-02T04:00:00|00:10:00|cpu=4
"""


def test_what_sacct_prints_is_read_and_bad_rows_are_left_out_counted_and_listed(tmp_path: Path, capsys) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(SACCT)
    words = (str(path), "--gpus", "4", "--policy", "fifo", "--by", "user")
    assert _run(*words) == 2
    assert "jobs.txt:5: column Submit: expected seconds" in capsys.readouterr().err
    assert _run(*words, "--skip-bad-rows", "--json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert "2 rows are left out:\n" in shown.err
    assert [row.partition(": ")[0].rpartition("/")[2] for row in found["skipped_rows"]] == ["jobs.txt:5", "jobs.txt:6"]
    groups = found["runs"][0]["summary"]["groups"]
    assert {user: figures["jct_s"] for user, figures in groups.items()} == {"ann": 86400, '"bob': 123}


def test_jobs_that_run_when_the_trace_begins_hold_their_gpus(tmp_path: Path, capsys) -> None:
    (tmp_path / "trace.csv").write_text("at,n,s,now\n0,3,10,0\n0,2,50,1\n0,2,20,yes\n")
    columns = ("--columns", "submit=at,gpus=n,duration=s,running=now")
    csv_path = tmp_path / "out.csv"
    for policy in CATALOGUE:
        assert (
            _run(str(tmp_path / "trace.csv"), *columns, "--gpus", "4", "--policy", policy, "--jobs-csv", str(csv_path))
            == 0
        )
        rows = [line.split(",") for line in csv_path.read_text().splitlines()[1:]]
        started = {row[0]: (float(row[5]), row[-1].split()[0]) for row in rows}
        assert started["3"] == started["4"] == (0.0, "0:2"), policy
    capsys.readouterr()
    assert _run(str(tmp_path / "trace.csv"), *columns, "--gpus", "3", "--policy", "fifo") == 2
    assert "the 2 jobs that run when the trace begins hold 4 GPUs and the cluster has 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("generated:elan:5", "--policy", "fifo"), "--gpus is missing"),
        (("generated:elan:5", "--gpus", "4"), "--policy is missing"),
        (("generated:elan:5", "--gpus", "4,8", "--policy", "fifo", "--plot"), "for one cluster"),
        (("generated:elan:5", "--gpus", "4", "--policy", "fifo", "--measured-only"), "needs --curves"),
        (
            ("generated:elan:40", "--gpus", "16", "--policy", "efifo", "--curves", "profile.json", "--measured-only"),
            "profile.json: 2 GPUs were not measured; there are 1, 4: measure that size",
        ),
        (("generated:elan:5", "--gpus", "4", "--policy", "fifo", "--by", "user"), "--by user: no job of"),
        (("generated:elan:5", "--gpus", "4", "--policy", "fifo", "--load", "0"), "a load of 0 cannot be simulated"),
        (("generated:elan:5", "--gpus", "4", "--policy", "fifo", "--p95", "0s"), "give a time above 0"),
        (("generated:elan:5", "--gpus", "4", "--policy", "easy", "--resume", "1"), "--resume is not used by easy"),
    ],
)  # fmt: skip
def test_questions_that_cannot_be_answered_are_refused(words, says, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    profiled(1, 4)
    assert _run(*words) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


def test_the_help_tells_the_shapes_of_traces_and_the_defaults_of_policies(capsys) -> None:
    with pytest.raises(SystemExit):
        _run("--help")
    shown = capsys.readouterr().out
    assert "tiresias          resume 30, quanta 10000,200000, starvation off" in shown
    assert "philly   median 1500 s" in shown


def test_the_schema_names_each_key_of_the_output(capsys) -> None:
    assert _run("--schema") == 0
    schema = json.loads(capsys.readouterr().out)
    found = report(capsys, "generated:elan:5", "--gpus", "16", "--policy", "fifo")
    assert set(schema["$defs"]["SimulationReport"]["properties"]) == set(found)
    assert set(schema["$defs"]["Summary"]["properties"]) == set(found["runs"][0]["summary"])


@pytest.mark.parametrize("policy", ["efifo", "ebf"])
def test_measured_only_lets_no_job_run_on_fewer_gpus_than_were_measured(policy, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    profiled(2, 4, 8)
    Path("trace.csv").write_text("at,n,s\n" + "".join(f"{at},4,1000\n" for at in range(12)))
    words = ("trace.csv", "--columns", "submit=at,gpus=n,duration=s", "--gpus", "8", "--policy", policy)
    words += ("--curves", "profile.json", "--jobs-csv", "out.csv")
    assert _run(*words) == 0
    assert 1 in _held(Path("out.csv"))
    assert _run(*words, "--measured-only") == 0
    assert min(_held(Path("out.csv"))) >= 2


def _held(path: Path) -> set[int]:
    """The numbers of GPUs that jobs held."""
    spans = [span for line in path.read_text().splitlines()[1:] for span in line.split(",")[-1].split()]
    return {int(span.partition(":")[2]) for span in spans} - {0}


def profiled(*sizes: int) -> None:
    """Write a profile of these sizes into this folder."""
    measured = [{"size": n, "samples_per_s": 100.0 * n, "batch": 64.0} for n in sizes]
    profile = {"version": 1, "program": ["a"], "attachment": "local", "sizes": measured}
    Path("profile.json").write_text(json.dumps(profile))


def test_rows_left_out_of_a_sweep_over_sacct_rows_are_counted_and_listed_once(tmp_path: Path, capsys) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(SACCT.replace('8|"bob|2024-01-02T03', '8|"bob|2024-01-02T05'))
    words = (str(path), "--gpus", "4,8", "--load", "0.5,1", "--policy", "fifo", "--against", "easy", "--skip-bad-rows")
    assert _run(*words, "--json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert len(found["runs"]) == 8
    assert {run["summary"]["overall"]["jobs"] for run in found["runs"]} == {2}
    assert len(found["skipped_rows"]) == 2
    assert (
        shown.err.count("2 rows are left out:") == shown.err.count("jobs.txt:5") == shown.err.count("jobs.txt:6") == 1
    )
