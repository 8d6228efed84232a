"""``kungfu replay --policy``: what the policy would have cost and saved, beside what was."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kungfu as kf
from kungfu.cli.replay.forecast import forecast, forecast_as_json
from kungfu.compiler import compile_policies
from kungfu.policies import schedule
from kungfu.testing import ClusterModel, PeerSpeeds, Rescaling, Start
from tests.cli.conftest import Printed
from tests.cli.recorded import written as with_events
from tests.testing.recorded_run import lines_of, recorded_run
from tests.trace.recorded import written

MODEL = ClusterModel(
    {2: 200.0, 4: 340.0, 6: 420.0}, 10_000,
    Start(size=2, max_size=12, global_batch_size=64, job_samples=20_000),
    rescaling=Rescaling(1, stop_s=0.25, joining_s=4.0), speeds=PeerSpeeds(jitter=0.02),
)  # fmt: skip
RAN = compile_policies([schedule({40: 4, 80: 6})])


def folder(tmp_path: Path, *, model: ClusterModel = MODEL, plan: Any = RAN) -> Path:
    trace, events = recorded_run(plan, model)
    return written(with_events(tmp_path, events), lines_of(trace))


def test_it_ends_with_what_was_what_would_have_been_and_the_difference(tmp_path: Path, printed: Printed) -> None:
    text = printed("replay", folder(tmp_path), "--policy", "schedule({20: 6})")
    _, _, told = text.partition("the same samples under this policy, on a model of the job")
    rows = {line.split("|")[1].strip(): line for line in told.splitlines() if re.match(r"\| \w", line)}
    assert {"time", "peer-seconds", "sizes"} == {*rows}
    assert "2 -> 4 -> 6" in rows["sizes"]
    assert "2 -> 6" in rows["sizes"]
    assert "%)" in rows["time"]
    assert "schedule decides 1 time: 6 after step 20" in told
    assert "a joiner takes 4.0 s, a rescale stops all for 250 ms" in told
    assert "guessed" not in told


def test_json_has_it_too_and_it_is_what_the_truth_would_have_given(tmp_path: Path, printed: Printed) -> None:
    from kungfu.testing import run_on_model

    told = json.loads(printed("replay", folder(tmp_path), "--policy", "schedule({20: 6})", "--json"))["forecast"]
    was, other = run_on_model(schedule({40: 4, 80: 6}), MODEL), run_on_model(schedule({20: 6}), MODEL)
    assert told["was"]["seconds"] == pytest.approx(was.seconds, rel=0.01)
    assert told["would_be"]["seconds"] == pytest.approx(other.seconds, rel=0.02)
    assert told["difference"]["seconds"] == pytest.approx(other.seconds - was.seconds, abs=1)
    assert told["difference"]["peer_seconds"] == pytest.approx(other.peer_seconds - was.peer_seconds, rel=0.1)
    assert [one["size"] for one in told["would_be"]["sizes"]] == [2, 6]
    assert [(one["step"], one["value"]) for one in told["decisions"]] == [(20, 6.0)]
    assert (told["unknown"], told["guesses"]) == ("", [])
    assert [one["size"] for one in told["measured"]] == [2, 4, 6]


def test_sizes_that_were_never_seen_are_told_as_guesses(tmp_path: Path, printed: Printed) -> None:
    words = ("--policy", "schedule({20: 3, 60: 9, 100: 1})")
    text = " ".join(printed("replay", folder(tmp_path), *words).split())
    assert "guessed: 3 peers were never seen: their throughput lies on a line between" in text
    assert "guessed: 9 peers were never seen, beyond the largest size that was (6)" in text
    assert "guessed: 1 peer was never seen, below the smallest size that was (2)" in text
    assert "guessed: batches of" in text


def test_a_record_with_one_size_cannot_tell(tmp_path: Path, printed: Printed) -> None:
    words = ("replay", folder(tmp_path, plan=compile_policies([schedule({1: 2})])), "--policy", "schedule({20: 6})")
    text = " ".join(printed(*words).split())
    assert "what this policy would have cost cannot be estimated: this record has one size only, 2 peers" in text
    told = json.loads(printed(*words, "--json"))["forecast"]
    assert told["would_be"] is None
    assert told["unknown"].startswith("this record has one size only")
    assert told["was"]["seconds"] > 0


def test_a_policy_that_stops_early_is_no_saving_and_says_so() -> None:
    """A model that was cut off is no policy that ends the job."""
    early = kf.Policy("early", lambda t: kf.control.always().when(t.step == 50).stop())
    tiny = kf.Policy("tiny", lambda t: kf.control.always().when(t.step == 5).set_global_batch_size(2))
    stopped, cut = (forecast(compile_policies([one]), *recorded_run(RAN, MODEL)) for one in (early, tiny))
    words = "the policy ends the job early, after 3,264 of 20,000 samples"
    assert forecast_as_json(stopped)["guesses"][-1].startswith(words)
    assert cut.run is not None
    assert cut.run.samples < 20_000
    assert cut.guesses[-1].startswith(f"the model was run for {cut.run.steps:,} steps and no further, after ")


@pytest.mark.parametrize(
    ("planned", "lines"),
    [
        (0, ["the job did not know how many samples it has: on the model it has those of the record, 20,000"]),
        (50_000, ["the job was to train on 50,000 samples and came to 20,000: on the model it has those of"]),
        (20_000, []),
    ],
)
def test_a_policy_that_reads_the_samples_of_the_job_is_told_those_of_the_record(planned: int, lines: list[str]) -> None:
    trace, events = recorded_run(RAN, MODEL)
    steps = tuple(replace(one, agreed={**one.agreed, "job_samples": planned}) for one in trace.steps)
    reads = kf.Policy("reads", lambda t: kf.control.every(50).call(print, kf.monitor.remaining_samples(t)))
    told = forecast(compile_policies([reads, schedule({40: 4, 80: 6})]), replace(trace, steps=steps), events)
    assert len(told.guesses) == len(lines)
    assert all(one.startswith(begins) for one, begins in zip(told.guesses, lines, strict=True))
    # Whoever does not read them is not told of them.
    assert forecast(RAN, replace(trace, steps=steps), events).guesses == ()
