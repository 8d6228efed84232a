"""The model of all peers, restored from a named checkpoint that only rank 0 may have."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PolicyError, UsageError
from kungfu.runtime.api import Asked, RestoreCheckpoint
from kungfu.runtime.checkpoints.folder import find, published
from kungfu.runtime.checkpoints.manifest import read_manifest, stable_names
from kungfu.training.loop.between_steps import _start_checkpoints, complete_pending
from kungfu.training.loop.restoring import restore_wanted
from kungfu.training.run import Pending, Restoring, Standing
from kungfu.training.state import registered_sync
from kungfu.training.state.checkpoint_manager import CheckpointRequest
from kungfu.training.state.registered_sync import PeerGroup
from tests.training.linear import points
from tests.training.loop.test_settings import of_kind, run_with
from tests.training.peers import on_peers, total_of

ALWAYS = kf.control.always()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A program that runs alone keeps its checkpoints where it stands."""
    monkeypatch.chdir(tmp_path)


def full(*rules: Any, **given: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A run with something of each class of state, whose rules fire in the given steps; and its events."""
    layers = [keras.layers.Dense(4, kernel_initializer="ones"), keras.layers.BatchNormalization()]
    made = [lambda training, step=step, act=act: act(ALWAYS.when(training.step == step)) for step, act in rules]
    optimizer = given.pop("optimizer", None) or keras.optimizers.Adam(0.1)
    return run_with(lambda training: tuple(one(training) for one in made), optimizer=optimizer, layers=layers, **given)


def saved(name: str = "best") -> Any:
    return lambda trigger: trigger.checkpoint(name)


def restored(name: str = "best") -> Any:
    return lambda trigger: trigger.restore(name)


def values(run: Any) -> dict[str, bytes]:
    """The variables that are restored, bit by bit."""
    found = run.training._run.checkpoints.trained_variables()
    return {name: one.numpy().tobytes() for name, one in zip(stable_names(found), found.values(), strict=True)}


def stepped(run: Any, steps: int) -> list[dict[str, bytes]]:
    """What is restored, before the first step and after each of so many steps."""
    found = [values(run)]
    for _ in range(steps):
        run.step(points(6))
        found.append(values(run))
    return found


def test_weights_statistics_and_slots_come_back_and_all_else_goes_on():
    run, events = full((2, saved()), (5, restored()), (5, lambda trigger: trigger.set_learning_rate(0.025)))
    counted, seen = {"steps": 0}, []
    run.training.register("counted", lambda: dict(counted), counted.update)
    for _ in range(6):
        run.step(points(6))
        counted["steps"] += 1
        seen.append(values(run))
    # Fired in step 2, the checkpoint holds the state after step 3; fired in step 5, it is restored after step 6.
    complete_pending(run.training._run)
    assert values(run) == seen[2] != seen[5]
    assert any("moving_mean" in name for name in seen[2]), "statistics of layers"
    assert any("velocity" in name for name in seen[2]), "slots"
    assert not any(name.endswith(("iteration", "learning_rate")) for name in seen[2])
    assert (run.training.step_number, int(run.optimizer.iterations), counted["steps"]) == (6, 6, 6)
    run.steps(1)
    assert float(run.optimizer.learning_rate) == pytest.approx(0.025), "a rate that is set in the same step is in force"
    run.training.finish()
    (event,) = of_kind(events, "restored")
    assert (event["name"], event["saved_step"], event["at_step"], event["step"]) == ("best", 3, 6, 5)
    assert Path(event["path"]).name == "step-00000003"
    assert event["rule"].startswith("<lambda>")
    assert os.readlink("checkpoints/best") == "step-00000003"


def test_a_loop_in_the_graph_goes_back_between_two_of_its_steps():
    run, events = full((2, saved()), (4, restored()))
    run.step(points(6))
    weights = tf.Variable(tf.zeros([6, 4]))

    @tf.function
    def steps(x: Any) -> None:
        for step in tf.range(5):
            run.step(x)
            weights.scatter_update(tf.IndexedSlices(tf.reshape(run.model.weights[-1], [1, 4]), [step]))

    steps(points(6))
    (event,) = of_kind(events, "restored")
    assert (event["saved_step"], event["at_step"], run.training.step_number) == (3, 5, 6)
    after = weights.numpy()[:5].tolist()  # steps 2 to 6, each after its barrier
    assert after[3] == after[1] != after[2]


def test_a_name_goes_to_the_newest_and_its_checkpoint_outlives_those_that_are_newer():
    plain = [(step, lambda trigger: trigger.checkpoint()) for step in (6, 8, 10, 12)]
    run, events = full((2, saved()), (4, saved()), *plain, (14, restored()))
    run.steps(16)
    run.training.finish()
    folder = Path("checkpoints").absolute()
    assert [path.name[-2:] for path in published(folder)] == ["13", "11", "09", "05"]
    assert find(folder / "best") == folder / "step-00000005"
    assert find(folder).name == "step-00000013"
    names = [event.get("names", ()) for event in of_kind(events, "checkpoint")]
    assert names == [("best",), ("best",), (), (), (), ()]
    (event,) = of_kind(events, "restored")
    assert event["saved_step"] == 5


def test_a_checkpoint_in_the_step_of_a_restore_holds_the_restored_state():
    run, _ = full((1, saved()), (4, saved("after")), (4, restored()))
    seen = stepped(run, 5)
    run.training.finish()
    assert values(run) == seen[2]
    assert read_manifest(find(Path("checkpoints/after"))).step == 5
    for name in ("best", "after"):
        run.training._run.checkpoints.trained_variables()["model/linear/head/kernel"].assign(tf.zeros([4, 1]))
        tf.train.Checkpoint(model=run.model).read(str(find(Path("checkpoints") / name) / "state")).expect_partial()
        assert values(run) == seen[2]


def test_of_two_names_in_one_step_the_first_is_restored_and_the_record_has_both():
    run, events = full((1, saved("a")), (3, saved("b")), (5, restored("b")), (5, restored("a")))
    seen = stepped(run, 6)
    run.training.finish()
    assert values(run) == seen[4]
    (event,) = of_kind(events, "restored")
    assert event["name"] == "b"
    (late,) = of_kind(events, "superseded")
    assert (late["what"], late["by"]) == ("the checkpoint 'a' restored", event["rule"])


@pytest.mark.parametrize("last", [4, 5], ids=["in the last step", "a step before a stop"])
def test_a_restore_is_carried_out_before_training_ends(last):
    """A rule that fires in the very last step counts as well, as by Keras' `on_train_end`."""
    stop = [(4, lambda trigger: trigger.stop())] if last == 5 else []
    run, events = full((1, saved()), (4, restored()), *stop)
    seen = stepped(run, last)
    assert run.training.stopped == (last == 5)
    run.training.finish()
    assert values(run) == seen[2]
    assert [event["at_step"] for event in of_kind(events, "restored")] == [last]


def test_a_hook_writes_and_restores_by_name():
    def look(control: Any, step: int) -> None:
        if step == 2:
            control.checkpoint("good")
            control.checkpoint("first")
        else:
            control.restore("nothing")
            control.restore("good")

    run, events = run_with(lambda training: kf.control.every(1).when(training.step % 3 == 2).call(look, training.step))
    run.steps(6)
    run.training.finish()
    assert [event["names"] for event in of_kind(events, "checkpoint")] == [("good", "first")], "one with both names"
    (event,) = of_kind(events, "restored")
    assert (event["name"], event["saved_step"]) == ("good", 3), "the last call of a method counts"
    assert [list(one["also"]) for one in of_kind(events, "called")] == [
        ["checkpoint('good')", "checkpoint('first')"],
        ["restore('good')"],
    ]


def damage(folder: Path) -> None:
    (data,) = folder.glob("state.data*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))


def missing() -> None:
    """Nothing of that name was written."""


def damaged() -> None:
    damage(find(Path("checkpoints/best")))


def removed() -> None:
    for file in find(Path("checkpoints/best")).iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (missing, "there is no checkpoint 'better' in .*checkpoints; named there: best"),
        (damaged, "is damaged"),
        (removed, "is no whole checkpoint"),
    ],
)
def test_a_checkpoint_that_cannot_be_had_changes_nothing_and_is_told(spoil, told, capsys):
    run, events = full((1, saved()), (4, restored("better" if spoil is missing else "best")))
    run.steps(3)
    run.training._run.checkpoints.wait()
    spoil()
    run.steps(2)
    before = values(run)
    complete_pending(run.training._run)
    assert values(run) == before
    (event,) = of_kind(events, "restored")
    assert re.search(told, event["error"])
    assert f"step 4: {event['rule']} wants the checkpoint" in capsys.readouterr().err
    run.steps(1)
    run.training.finish()
    assert run.training.step_number == 6, "training went on"


def test_a_checkpoint_of_another_model_is_not_taken():
    other, _ = run_with(lambda training: ALWAYS.when(training.step == 1).checkpoint("best"))
    other.steps(2)
    other.training.finish()
    run, events = full((2, restored()))
    run.steps(4)
    (event,) = of_kind(events, "restored")
    assert "is not of this program" in event["error"]


def test_training_that_ends_without_the_wanted_model_is_an_error_and_loses_nothing():
    run, events = full((3, restored()), (3, lambda trigger: trigger.stop()))
    run.steps(4)
    assert run.training.stopped
    with pytest.raises(UsageError, match=r"no checkpoint 'best' in .*training has ended without it, with the state"):
        run.training.finish()
    (event,) = of_kind(events, "checkpoint")
    assert read_manifest(Path(event["path"])).step == 4


def test_the_folds_and_values_of_a_program_may_be_others_than_when_it_was_written():
    first, _ = full((1, saved()))
    first.training.register("counter", lambda: 1, print)
    kept = stepped(first, 2)[2]
    first.training.finish()
    second, _ = full((1, restored()), (900, lambda trigger: trigger.cooldown(steps=5).stop()))
    second.steps(2)
    second.training.finish()
    assert values(second) == kept


def test_a_resumed_run_goes_back_to_a_checkpoint_of_the_run_before(tmp_path, monkeypatch):
    """Its own folder has taken the name over, and gives it to a newer checkpoint later."""
    rules = [(1, saved()), (5, restored()), (8, saved())]
    first, _ = full(*rules)
    kept = stepped(first, 3)[2]
    first.training.checkpoint()
    first.training.finish()
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "second")
    second, events = full(*rules)
    assert second.training.resume(tmp_path / "checkpoints").name == "step-00000003"
    seen = stepped(second, 3)
    second.step(points(6))
    (event,) = of_kind(events, "restored")
    assert (event["step"], event["at_step"], event["saved_step"]) == (5, 6, 2)
    assert Path(event["path"]) == tmp_path / "checkpoints" / "step-00000002"
    assert seen[-1] != kept
    second.steps(2)
    second.training.finish()
    assert os.readlink("checkpoints/best") == "step-00000009"


# ---- several peers ---------------------------------------------------------------------------------------------------


def peer(run: Any, rank: int, size: int, *, wanted: bool = True) -> Any:
    """The record of a run as one of several peers, which has heard the request of a rule."""
    asked = Asked(RestoreCheckpoint("best"), "go_back", 4, {"loss": float("nan")}) if wanted else None
    pending = Pending(restoring=Restoring(asked))
    return replace(run.training._run, standing=Standing(rank=rank, size=size), pending=pending)


def in_folder(run: Any, folder: Path) -> Any:
    """A run whose checkpoints are in a folder of its host's own."""
    manager = run.training._run.checkpoints
    manager._settings = replace(manager._settings, folder=str(folder))
    return run


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_only_rank_0_has_the_file_and_all_have_its_bits(tmp_path, wanted):
    """Rank 0's word counts: a peer whose rule did not fire restores too, and one whose rule alone fired does not."""
    runs = []
    for rank in (0, 1):
        run, _ = full((90, restored()))
        runs.append(in_folder(run, tmp_path / str(rank)))
        run.step(np.full([6, 2], rank + 1.0, np.float32))
    record = runs[0].training._run
    record.checkpoints.request(CheckpointRequest("rule", names=("best",)))
    _start_checkpoints(record, rank=0)
    kept, other = values(runs[0]), values(runs[1])
    runs[0].step(np.full([6, 2], 5.0, np.float32))
    now = values(runs[0])

    def act(rank: int, attachment: Any) -> tuple[int, Asked | None]:
        here = peer(runs[rank], rank, 2, wanted=wanted[rank])
        group = PeerGroup(rank, 2, total_of(attachment))
        restore_wanted(here, group, decided_by=0)
        restoring, done = here.pending.restoring, here.pending.restoring.done_at
        restoring.wanted, restoring.is_last = Asked(RestoreCheckpoint("nothing"), "go_back", 5), True
        restore_wanted(here, group, decided_by=0)
        assert "go_back wants the checkpoint 'nothing' restored: there is no" in restoring.error, "known to all"
        assert (restoring.wanted, restoring.done_at) == (None, done)
        return here.standing.stage, restoring.wanted

    found = on_peers(2, act)
    assert [values(run) for run in runs] == ([kept, kept] if wanted[0] else [now, other])
    assert found == [(5 if wanted[0] else 3, None)] * 2


def test_a_peer_that_is_lost_meanwhile_leaves_the_request_to_the_others(tmp_path):
    runs = [in_folder(full((90, restored()))[0], tmp_path) for _ in range(2)]
    for run in runs:
        run.step(points(6))
    record = runs[0].training._run
    record.checkpoints.request(CheckpointRequest("rule", names=("best",)))
    _start_checkpoints(record, rank=0)
    records = [peer(run, rank, 2) for rank, run in enumerate(runs)]

    def act(rank: int, attachment: Any) -> None:
        total = total_of(attachment)

        def dying(tensors: Any, **given: Any) -> Any:
            if rank == 1:
                attachment.close()
                raise tf.errors.UnavailableError(None, None, "it is gone")
            return total(tensors, **given)

        with pytest.raises(tf.errors.OpError):
            restore_wanted(records[rank], PeerGroup(rank, 2, dying), decided_by=0)

    on_peers(2, act)
    assert all(one.pending.restoring.wanted is not None for one in records)


def test_rank_0_reads_for_as_long_as_it_takes_and_the_others_hear_that_it_does(monkeypatch):
    """The work ends once the peers have exchanged so many messages meanwhile."""
    monkeypatch.setattr(registered_sync, "_TELL_EVERY_S", 0.01)
    enough, heard = threading.Event(), [0, 0]

    def act(rank: int, attachment: Any) -> bytes:
        total = total_of(attachment)

        def counting(tensors: Any, **given: Any) -> Any:
            heard[rank] += 1
            if min(heard) > 4:
                enough.set()
            return total(tensors, **given)

        def work() -> bytes:
            assert rank == 0
            assert enough.wait(60.0), "the peers have exchanged messages"
            return b"read" * 1000

        return PeerGroup(rank, 2, counting).from_rank_0(work)

    assert on_peers(2, act) == [b"read" * 1000] * 2


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a/b", "../best", ".best", "step-3", "latest", "x" * 101, None, 3, "best\n"])
def test_a_name_that_could_be_no_folder_is_refused_at_once(name):
    with pytest.raises(PolicyError, match=r"restore\(.*: takes a name for the checkpoint, as in restore\('best'\)"):
        kf.control.every(3).restore(name)
    if name:
        with pytest.raises(PolicyError, match=r"checkpoint\(.*: takes a name"):
            kf.control.every(3).checkpoint(name)
