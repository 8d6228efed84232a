"""Batch and learning rate on a rescale: algorithm 1 of the Elan paper."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.compiler import compile_policies, fired_on_rescale
from kungfu.errors import PolicyError
from kungfu.policies import hybrid_scaling, schedule
from kungfu.policy_definition.policy_path import load_policy
from kungfu.testing import ClusterModel, SimulatedStep, Start, run_on_model
from kungfu.testing.simulated_run import simulate
from tests.policies.test_linear_scaling import rates

TABLE = {32: 2, 64: 4, 128: 8, 256: 10}


def algorithm_1(batch: int, *, before: int, after: int, table: Mapping[int, int]) -> float:
    """The total batch size after the adjustment, as the paper's listing has it."""
    k = 1
    while k <= after / before:
        entries = [entry for entry in table if entry <= k * batch]
        optimal = table[max(entries)] if entries else 1
        if optimal >= after:
            return k * batch
        k *= 2
    return batch * after / before


def settled(
    *,
    batch: int,
    before: int,
    after: int,
    keep: str = "local",
    table: Mapping[int, int] = TABLE,
    epoch_samples: int = 0,
    rate: float = 0.125,
) -> dict[str, float]:
    plan = compile_policies([hybrid_scaling(table, over_steps=50)])
    kept = batch if keep == "global" else round(batch * after / before)
    barrier = {
        "size": after,
        "previous_size": before,
        "step": 9,
        "global_batch_size": kept,
        "previous_global_batch_size": batch,
        "base_size": before,
        "base_global_batch_size": batch,
        "epoch_samples": epoch_samples,
        "learning_rate": rate,
    }
    done = {type(one.action).__name__: one.value for one in fired_on_rescale(plan, barrier, step=9)}
    return {"batch": done.get("SetGlobalBatchSize", kept), "rate": done.get("SetLearningRate", rate)}


def test_an_epoch_bounds_the_batch() -> None:
    assert settled(batch=64, before=4, after=8, epoch_samples=100)["batch"] == 100  # instead of 128


def test_a_rate_that_is_not_known_is_not_set_and_the_batch_is() -> None:
    found = settled(batch=64, before=4, after=10, keep="global", rate=math.nan)
    assert (found["batch"], math.isnan(found["rate"])) == (160, True)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 64).map(lambda n: 8 * n),
    before=st.integers(1, 16),
    after=st.integers(1, 32),
    table=st.dictionaries(st.integers(1, 2000), st.integers(1, 40), min_size=1, max_size=5),
    keep=st.sampled_from(["local", "global"]),
)
def test_it_is_algorithm_1_whatever_the_rescale_kept(
    batch: int, before: int, after: int, table: dict[int, int], keep: str
) -> None:
    if before == after:
        return
    wanted = max(algorithm_1(batch, before=before, after=after, table=table), after)
    found = settled(batch=batch, before=before, after=after, keep=keep, table=table)
    assert abs(found["batch"] - wanted) <= 0.5  # it is whole, and the paper's last resort need not be
    np.testing.assert_allclose(found["rate"], 0.125 * found["batch"] / batch, rtol=1e-6)


def test_beside_a_policy_that_rescales_it_sets_both() -> None:
    found = rates([schedule({5: 4, 30: 8}), hybrid_scaling(TABLE, over_steps=10)])
    # From 2 to 4 peers 32 samples would leave two of them idle, and 64 is what the rescale made of them already.
    shown = [(type(one.action).__name__, one.value) for one in found]
    assert shown == [("SetLearningRate", 0.25), ("SetLearningRate", 0.5)]


@pytest.mark.parametrize("sizes", [{5: 4, 30: 2}, {5: 8, 30: 2}, {5: 4, 15: 8, 25: 3, 35: 2}])
@pytest.mark.parametrize(("batch", "table"), [(64, TABLE), (8, TABLE), (64, {64: 10}), (48, {48: 2})])
def test_a_growth_and_a_return_leave_batch_and_rate_as_they_were(
    sizes: dict[int, int], batch: int, table: dict[int, int]
) -> None:
    start = Start(size=2, max_size=8, global_batch_size=batch, learning_rate=0.125)
    model = ClusterModel({1: 100, 8: 800}, steps=60, start=start)
    seen: list[SimulatedStep] = []
    simulate(compile_policies([schedule(sizes), hybrid_scaling(table, over_steps=0)]), model, seen=seen.append)
    assert len({one.size for one in seen}) == len({2, *sizes.values()})
    assert (seen[-1].size, seen[-1].samples, seen[-1].learning_rate) == (2, batch, pytest.approx(0.125))


# ---- the table of a profile ------------------------------------------------------------------------------------------

SPEEDS: Mapping[float, Mapping[int, float]] = {64: {1: 100.0, 2: 150.0, 4: 150.0}, 128: {1: 110.0, 2: 190.0, 4: 260.0}}


def profile(folder: Path, speeds: Mapping[float, Mapping[int, float]] = SPEEDS, **changes: Any) -> Path:
    """The file of a profile with these throughputs, by batch and size."""
    sizes = [
        {"size": size, "samples_per_s": speed, "batch": batch, "steps": 5}
        for batch, by_size in speeds.items()
        for size, speed in by_size.items()
    ]
    command = ["python", "here/train.py", "--small"]
    document = {"version": 1, "program": command, "attachment": "local", "state": "carried out", "sizes": sizes}
    path = folder / "profile.json"
    path.write_text(json.dumps(document | changes))
    return path


def test_the_file_of_a_profile_gives_the_table_of_the_fastest_sizes(tmp_path: Path) -> None:
    model = ClusterModel({1: 100, 8: 800}, steps=60, start=Start(size=1, max_size=8, global_batch_size=64))
    path, sizes = profile(tmp_path), schedule({5: 2, 15: 4, 25: 8})
    # Of the equally fast sizes 2 and 4 the smaller one counts, and 4 was the largest for 128 samples.
    table = {64: 2, 128: 4}
    expected = run_on_model([sizes, hybrid_scaling(table, over_steps=7)], model)
    measured = hybrid_scaling.from_profile(path, program="python train.py", batch=128, attachment="local", over_steps=7)
    found = run_on_model([sizes, measured], model)
    assert [(one.rule, one.step, one.value) for one in found.decisions] == [
        (one.rule, one.step, one.value) for one in expected.decisions
    ]
    assert [one.value for one in found.decisions if type(one.action).__name__ == "SetLearningRate"] == [
        pytest.approx(0.2), pytest.approx(0.8),
    ]  # fmt: skip
    named = load_policy(f"hybrid_scaling.from_profile({str(path)!r}, over_steps=7)")
    assert (named.name, run_on_model([sizes, named], model).samples) == ("hybrid_scaling", expected.samples)


def test_a_mean_batch_of_epochs_that_end_early_is_one_batch(tmp_path: Path) -> None:
    sizes = [{"size": 1, "samples_per_s": 100.0, "batch": 64.0}, {"size": 2, "samples_per_s": 90.0, "batch": 63.4}]
    model = ClusterModel({1: 100, 8: 800}, steps=20, start=Start(size=1, global_batch_size=64))
    runs = (
        run_on_model([schedule({5: 2}), policy], model)
        for policy in (hybrid_scaling({64: 1}), hybrid_scaling.from_profile(profile(tmp_path, sizes=sizes)))
    )
    assert len({one.samples for one in runs}) == 1


@pytest.mark.parametrize(
    ("speeds", "changes", "given", "message"),
    [
        (SPEEDS, {"version": 2}, {}, "is a profile of version 2, and 1 can be read"),
        (SPEEDS, {"state": "expired"}, {}, r"is a profile that did not come to its end \(expired\): measure it again"),
        (SPEEDS, {"sizes": 3}, {}, "is no profile .*give the file of `kungfu profile MIN MAX --batches B"),
        (
            SPEEDS,
            {},
            {"program": "train.py --large"},
            "of `python here/train.py --small`, and not of `train.py --large`",
        ),
        (SPEEDS, {}, {"program": "rain.py"}, "is a profile of "),
        (SPEEDS, {}, {"attachment": "horovod"}, "was measured with --attachment local, and not horovod"),
        (SPEEDS, {}, {"batch": 256}, "was measured at batches of 64, 128, and not of 256"),
        ({}, {}, {}, "holds nothing; each batch needs the same sizes, at least two, once"),
        ({64: {1: 9.0}}, {}, {}, "holds 64 samples on 1 peers; each batch needs"),
        ({64: {1: 9.0, 2: 8.0}, 128: {2: 9.0}}, {}, {}, "holds 64 samples on 1, 2 peers; 128 samples on 2 peers; "),
        ({32: {1: 9.0}, 64: {2: 9.0}}, {}, {}, "holds 32 samples on 1 peers; 64 samples on 2 peers; "),
        ({64: {1: 9.0, 2: 0.0}}, {}, {}, "a size, a throughput and a batch are above 0"),
    ],
)
def test_a_file_that_gives_no_table_for_the_job_is_refused(
    tmp_path: Path, speeds: Any, changes: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    policy = hybrid_scaling.from_profile(profile(tmp_path, speeds, **changes), **given)
    with pytest.raises(PolicyError, match=message) as refused:
        compile_policies([policy])
    assert refused.value.policy == "hybrid_scaling"
    assert "test_hybrid_scaling.py:" in str(refused.value)


def test_a_file_that_is_not_there_is_refused_at_attach(tmp_path: Path) -> None:
    with pytest.raises(
        PolicyError, match=r"nowhere\.json: No such file or directory; give the file of `kungfu profile"
    ):
        compile_policies([hybrid_scaling.from_profile(tmp_path / "nowhere.json")])
