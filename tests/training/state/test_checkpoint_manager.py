"""Checkpoints of a program that runs alone, what becomes of training that goes on from one, and snapshots."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PeerFailure, UsageError
from kungfu.runtime.checkpoints.folder import CheckpointFolder, find, published
from kungfu.runtime.checkpoints.manifest import Manifest, read_manifest, stable_names
from kungfu.runtime.core.barrier import BarrierResult, Decision, LossRecovery
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import CheckpointSettings
from kungfu.training.loop.attach import _check_best_signal
from kungfu.training.loop.between_steps import complete_pending, left_pending
from kungfu.training.run import Standing
from kungfu.training.state.checkpoint_manager import CheckpointRequest
from kungfu.training.state.registered_sync import PendingSync
from kungfu.training.state.snapshot import tracked_tree
from tests.training.linear import linear_model, linear_run, points


def full_run():
    """Dropout, statistics, momentum: something of each class of state."""
    layers = [keras.layers.Dense(4, kernel_initializer="ones"), keras.layers.BatchNormalization()]
    return linear_run(*layers, keras.layers.Dropout(0.5, seed=3), optimizer=keras.optimizers.Adam(0.1))


def regular_run(*layers, policies=()):
    """Quick to trace."""
    return linear_run(*layers, optimizer=keras.optimizers.SGD(0.1, momentum=0.9), policies=policies)


def walked(run, *, until: int | None = None, epochs: int = 2, samples: int = 20) -> list[list[float]]:
    """Trains, and gives the inputs of every step that was done."""
    seen = []
    for x in run.training.batches(points(samples), batch_size=6, epochs=epochs, seed=4):
        if run.step(x) is not kf.Training.SKIPPED:
            seen.append(np.asarray(x)[:, 0].tolist())
        if until is not None and len(seen) == until:
            break
    return seen


def everything(run) -> dict[str, list]:
    classes = run.training._run.state.classes
    named = {**classes.shared, **classes.averaged, **classes.local}
    return dict(zip(stable_names(named), (np.asarray(one).tolist() for one in named.values()), strict=True))


def checkpointed(run, folder: Path) -> None:
    """Ends the run with a checkpoint of where it stands."""
    run.training.checkpoint(folder)
    run.training.finish()


@pytest.mark.slow
def test_training_that_goes_on_from_a_checkpoint_ends_as_if_it_had_never_stopped(tmp_path):
    whole = full_run()
    seen = walked(whole)
    first = full_run()
    began = walked(first, until=5)
    checkpointed(first, tmp_path)
    second = full_run()
    assert second.training.resume(tmp_path) == find(tmp_path)
    assert began + walked(second) == seen
    assert sorted(int(x) for step in seen[:4] for x in step) == list(range(20)), "an epoch, each sample once"
    assert everything(second) == everything(whole)
    assert second.training.traces() == 1


def test_registered_values_of_every_kind_go_along(tmp_path):
    def registered(run, held):
        run.training.register("best", lambda: held["best"], lambda value: held.update(best=value))
        run.training.register("mean", lambda: held["mean"], lambda value: held.update(mean=value), kind="averaged")
        run.training.register("drawn", lambda: held["drawn"], lambda value: held.update(drawn=value), kind="local")
        run.training.register("teacher", held["teacher"])
        return run

    held = {"best": {"loss": 0.5}, "mean": np.arange(3.0), "drawn": 12, "teacher": tf.Variable([3.0, 4.0])}
    first = registered(regular_run(), held)
    walked(first, until=2)
    held["best"] = {"loss": 0.25, "step": 2}
    checkpointed(first, tmp_path)
    fresh = {"best": {}, "mean": np.zeros(3), "drawn": 0, "teacher": tf.Variable([0.0, 0.0])}
    registered(regular_run(), fresh).training.resume(tmp_path)
    assert fresh["best"] == {"loss": 0.25, "step": 2}
    assert fresh["mean"].tolist() == [0.0, 1.0, 2.0]
    assert fresh["drawn"] == 12
    assert fresh["teacher"].numpy().tolist() == [3.0, 4.0]


def test_the_model_of_a_checkpoint_is_read_by_tensorflow_alone(written):
    folder, model = written
    other = regular_run().model
    tf.train.Checkpoint(model=other).read(str(find(folder) / "state")).expect_partial()
    for one, same in zip(other.weights, model.weights, strict=True):
        assert np.array_equal(one, same)


def test_a_rule_writes_checkpoints_while_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = regular_run(policies=[kf.Policy("keeping", lambda training: kf.control.every(2).checkpoint())])
    walked(run, epochs=1, samples=48)
    steps = [read_manifest(path).step for path in published(tmp_path / "checkpoints")]
    # A rule fires after a step, the barrier is behind the next one; the last one is written at the end.
    assert steps == [8, 7, 5]


def test_what_rules_had_made_of_the_batch_goes_on_from_a_checkpoint_with_that_batch():
    """Also the largest batch. A growth and the return after it leave a policy's and a command's batch as it was."""
    run = regular_run()
    walked(run, until=1)
    manager = run.training._run.checkpoints
    lasting = {"max_global_batch": 128, "policy_share": 16.0, "base_batch": 32, "base_size": 1}
    manager._resumed = Manifest(5, 4, 32, Terms(128, 32.0, **lasting))
    resumed = manager.continued(Terms(manager.batch_in_force(32), 64.0))
    assert resumed == Terms(128, 64.0, **lasting)
    assert resumed.base(2) == (32, 1)
    another = manager.continued(Terms(manager.batch_in_force(48), 24.0))
    assert another == Terms(48, 24.0, max_global_batch=128), "a program of another batch"


def test_the_largest_batch_of_a_policy_holds_from_the_first_view_on():
    """Also after a checkpoint with another largest batch."""
    run = regular_run(policies=[kf.policies.autoscale(max_peers=4, max_global_batch=20)])
    walked(run, until=1)
    assert run.training._run.terms == Terms(6, 6.0, max_global_batch=20)
    manager = run.training._run.checkpoints
    manager._resumed = Manifest(5, 4, 6, Terms(12, 6.0, max_global_batch=12))
    assert manager.continued(Terms(12, 6.0, max_global_batch=20)).max_global_batch == 20
    assert manager.continued(Terms(12, 6.0)).max_global_batch == 12


def test_where_there_is_no_checkpoint_training_starts_anew(tmp_path):
    run = regular_run()
    assert run.training.resume(tmp_path / "nothing") is None
    assert len(walked(run, epochs=1)) == 4


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint of a regular run, three steps in; and the model of that run, which is over."""
    folder = tmp_path_factory.mktemp("written")
    run = regular_run()
    walked(run, until=3)
    checkpointed(run, folder)
    return folder, run.model


def with_registered():
    run = regular_run()
    run.training.register("best", lambda: 1.0, print)
    return run


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (lambda: regular_run(keras.layers.Dense(5)), r"head/kernel is float32\[5, 1\] here and float32\[2, 1\] there"),
        (lambda: linear_run(optimizer=keras.optimizers.SGD(0.1)), "it holds optimizer/.*momentum, which is not here"),
        (lambda: regular_run(policies=[smoothing()]), "policy/.* is not in it"),
        (with_registered, "registered/best is not in it"),
    ],
    ids=["model", "optimizer", "policy", "registered"],
)
def test_a_checkpoint_of_another_program_is_refused_and_changes_nothing(written, program, told):
    run = program()
    before = everything(run)
    with pytest.raises(UsageError, match=told):
        run.training.resume(written[0])
    assert everything(run).items() >= before.items()


@kf.policy
def smoothing(training):
    """A policy with a fold."""
    return kf.control.always().when(training.mean_loss.ema(0.1) < -1e9).stop()


def test_bytes_that_changed_on_the_disk_are_told_before_anything_is_read(written, tmp_path):
    folder = shutil.copytree(written[0], tmp_path / "copy")
    (data,) = find(folder).glob("state.data*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))
    run = regular_run()
    before = everything(run)
    with pytest.raises(UsageError, match=r"is damaged: .*hecksum"):
        run.training.resume(folder)
    assert everything(run) == before


def test_other_data_are_refused_since_the_position_means_nothing_there(written):
    run = regular_run()
    run.training.resume(written[0])
    with pytest.raises(UsageError, match=r"20 samples by seed 4, .* and now it walks 30 samples"):
        walked(run, samples=30)


def test_a_checkpoint_binds_what_it_says_of_its_data_and_nothing_else():
    run = regular_run()
    manager = run.training._run.checkpoints
    manager._resumed = Manifest(5, 2, 64, Terms(96, 48.0), data={"samples": 20, "seed": 4, "targets": 5})
    with pytest.raises(
        UsageError, match=r"20 samples by seed 4, targets 5, and now it walks 20 .* seed 4, targets 7: "
    ):
        manager.begin({"samples": 20, "seed": 4, "targets": 7})
    manager.begin({"samples": 20, "seed": 4, "targets": 5})
    manager._resumed = Manifest(5, 2, 64, Terms(96, 48.0), data={"samples": 20, "seed": 4})
    manager.begin({"samples": 20, "seed": 4, "targets": 7})
    data = {"samples": 20, "seed": 4, "weights": 1, "validation": 2}
    manager._resumed = Manifest(5, 2, 64, Terms(96, 48.0), data=data)
    manager.begin({**data, "weights": 3, "validation": 4})


def test_a_folder_of_tensorflows_own_checkpoints_is_refused(tmp_path):
    tf.train.Checkpoint(model=linear_model()).write(str(tmp_path / "state"))
    run = regular_run()
    assert run.training.resume(tmp_path) is None
    (tmp_path / "kungfu.json").write_text("[]")
    with pytest.raises(UsageError, match="no whole checkpoint of kungfu"):
        run.training.resume(tmp_path)


def test_a_folder_that_cannot_be_written_does_not_end_training(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    run = regular_run()
    walked(run, until=2)
    checkpointed(run, tmp_path / "file" / "checkpoints")
    assert "no checkpoint of step 2" in capsys.readouterr().err


def regrouped(lost: int) -> BarrierResult:
    """How peer 1 of the peers 0, 1 and 2 comes through the loss of another one."""
    before, left = (Peer(0, "a:0"), Peer(1, "a:1"), Peer(2, "a:2")), [peer for peer in (0, 1, 2) if peer != lost]
    after = View(3, tuple(before[peer] for peer in left))
    decided = Decision(View(1, before), Terms()), Decision(after, Terms())
    recovery = LossRecovery({lost: "killed by SIGKILL"}, "rank 0 died", 0)
    return BarrierResult(*decided, 1, recovery=recovery, sources=(0, 1))


@pytest.mark.parametrize(
    ("lost", "written", "again"),
    [(0, False, True), (0, True, False), (2, False, False)],
    ids=["rank 0 before it wrote", "rank 0 after that", "another peer"],
)
def test_a_checkpoint_that_a_lost_rank_0_had_not_written_is_written_by_the_next(tmp_path, lost, written, again):
    run = regular_run()
    walked(run, until=2)
    record, checkpoints = run.training._run, run.training._run.checkpoints
    checkpoints.request(CheckpointRequest("keeping", CheckpointFolder(tmp_path)))
    record.pending.sync = PendingSync()
    complete_pending(replace(record, standing=Standing(rank=1, size=3)))
    assert not checkpoints.is_wanted
    if written:
        checkpointed(run, tmp_path)
    left_pending(record, regrouped(lost), step=2)
    assert checkpoints.is_wanted == again
    complete_pending(replace(record, standing=Standing(size=2)))
    checkpoints.wait()
    assert (find(tmp_path) is not None) == (written or again)


@pytest.mark.parametrize("keep", [0, -1, 1.5])
def test_no_fewer_than_one_checkpoint_is_kept(keep):
    with pytest.raises(UsageError, match="at least 1"):
        linear_run().training.checkpoint("anywhere", keep=keep)


class Answering:
    """The sums with another peer, which is gone at first, and whose counter is 7."""

    answers = False

    def all_reduce(self, tensors, **_):
        if not self.answers:
            raise PeerFailure("rank 0 died")
        words, last = tensors
        sent = b"\0" + (7).to_bytes(8, "little")  # a mark, that no hook has set it; then the value
        return [tf.constant(np.frombuffer(sent.ljust(4 * len(words), b"\0"), np.int32)), last]


def test_a_peer_has_taken_the_state_over_when_its_registered_values_have_come():
    run, heard, held = regular_run(), [], {"counter": 0}
    membership = run.training._run.membership
    run.training.register("counter", lambda: held["counter"], lambda value: held.update(counter=value))
    run.training.on_rescale(lambda change: heard.append(change.change))
    walked(run, until=1)
    membership.mark_state_complete = lambda: heard.append(held["counter"])
    record = replace(run.training._run, attachment=(attachment := Answering()), standing=Standing(rank=1, size=2))
    before, after = (Decision(View(number, (Peer(0, "a:0"), Peer(1, "a:1"))), Terms()) for number in (2, 4))
    recovery = LossRecovery({2: "gone"}, "died", 0)
    left_pending(record, BarrierResult(before, after, 1, recovery=recovery, sources=(0,)), step=4)
    with pytest.raises(PeerFailure):
        complete_pending(record)
    assert heard == []
    attachment.answers = True
    complete_pending(record)
    assert heard == [7, "recovered"], "before anything of the program's own is called"


def test_a_checkpoint_that_another_host_has_found_is_missed_and_not_passed_over(tmp_path):
    manager = regular_run().training._run.checkpoints
    manager._settings = replace(manager._settings, resume=str(tmp_path / "step-00000002"))
    with pytest.raises(UsageError, match=r"no checkpoint .*step-00000002 on this host.* all hosts need the folder"):
        manager.begin({})


# ---- a snapshot holds the moment when it was drawn up ----------------------------------------------------------------


def test_a_copy_keeps_its_values_whatever_is_assigned_meanwhile(tmp_path):
    model, optimizer = linear_model(keras.layers.Dense(3)), keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    counter = tf.Variable([1.0, 2.0])
    root = tf.train.Checkpoint(model=model, optimizer=optimizer, rest=tf.train.Checkpoint(**{"policy/a b": counter}))
    tree = tracked_tree(root)
    before = [np.asarray(one).copy() for one in model.weights]
    values = tree.values()
    optimizer.apply_gradients([(tf.ones_like(one), one) for one in model.trainable_variables])
    counter.scatter_nd_update([[0]], [7.0])
    tree.copy_with(values).write(str(tmp_path / "state"))
    assert not np.array_equal(model.weights[0], before[0])
    status = root.read(str(tmp_path / "state"))
    status.assert_existing_objects_matched()
    for one, was in zip(model.weights, before, strict=True):
        assert np.array_equal(one, was)
    assert counter.numpy().tolist() == [1.0, 2.0]
    assert int(optimizer.iterations) == 0


def test_a_variable_that_is_reached_twice_is_one_of_the_tree():
    shared = tf.Variable(1.0)
    tree = tracked_tree(tf.train.Checkpoint(a=shared, b=tf.train.Checkpoint(again=shared)))
    assert sum(one is not None for one in tree.variables) == 1
    copy = tree.copy_with(tree.values())
    assert copy.a is copy.b.again


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "again"), [(2, True), (3, False)], ids=["at its step", "after another step"])
def test_a_name_is_not_given_to_a_later_state_than_the_one_it_was_asked_for(tmp_path, capsys, step, again):
    run, told = regular_run(), []
    walked(run, until=2)
    record, checkpoints = run.training._run, run.training._run.checkpoints
    checkpoints._record = lambda stream, event: told.append(event)
    checkpoints.request(CheckpointRequest("early_stop", CheckpointFolder(tmp_path), ("best",)))
    record.pending.sync = PendingSync()
    complete_pending(replace(record, standing=Standing(rank=1, size=3)))
    left_pending(record, regrouped(lost=0), step=step)
    assert checkpoints.is_wanted == again
    complete_pending(replace(record, standing=Standing(size=2)))
    checkpoints.wait()
    assert (find(tmp_path / "best") is not None) == again
    (event,) = told
    assert (event.step, event.rule, event.names) == (2, "early_stop", ("best",))
    assert event.error == ("" if again else "rank 0 was lost before best was on disk")
    assert ("no checkpoint of step 2" in capsys.readouterr().err) == (not again)


@kf.policy
def watching(training):
    """Names a signal, and writes a checkpoint after every step."""
    price = training.fed("price").named("price")
    return kf.control.always().when(price < 9).checkpoint()


@pytest.mark.parametrize("signal", ["price", "mean_loss"])
def test_the_best_checkpoint_is_that_with_the_lowest_value_also_in_a_resumed_run(tmp_path, monkeypatch, signal):
    monkeypatch.chdir(tmp_path)
    settings = CheckpointSettings(best_signal=signal, keep=1)
    run, found = regular_run(policies=[watching()]), []

    def step(price: float) -> None:
        run.training.feed("price", price)
        run.step(points(6))
        run.training._run.checkpoints.request(CheckpointRequest("test"))
        run.training._run.pending.sync = PendingSync()
        complete_pending(run.training._run)
        run.training._run.checkpoints.wait()

    run.training._run.checkpoints._settings = settings
    for price in (5.0, 4.0, 2.0, 2.0):
        step(price)
    assert read_manifest(find(tmp_path / "checkpoints" / "best")).step == (3 if signal == "price" else 4)
    run.training.finish()
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.chdir(second)
    run = regular_run(policies=[watching()])
    run.training._run.checkpoints._settings = settings
    run.training.resume(tmp_path / "checkpoints")
    for price in (3.0, 1.0):
        step(price)
        found.append(read_manifest(find(Path("checkpoints") / "best")).step)
    assert found == ([3, 6] if signal == "price" else [5, 6])


def test_a_signal_that_no_policy_names_and_a_name_that_two_would_give_are_refused():
    run = regular_run(policies=[watching()])
    plan, checkpoints = run.training._run.plan, run.training._run.checkpoints
    with pytest.raises(UsageError, match=r"--keep best:cost: no policy .* there are mean_loss, price; name one"):
        _check_best_signal(plan, "cost")
    checkpoints._settings = replace(checkpoints._settings, best_signal="price")
    with pytest.raises(UsageError, match=r"early_stop writes a checkpoint named 'best', and kungfu-run --keep best"):
        checkpoints.request(CheckpointRequest("early_stop", names=("best",)))
