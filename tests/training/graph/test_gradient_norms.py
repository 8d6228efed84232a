"""The norms that policies take of a step's gradients: what they are, and that they arrive where they are sent."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu import control, monitor, ops
from kungfu.compiler import compile_policies
from kungfu.compiler.compiled_policies import LOCAL_NORM, MEAN_NORM
from kungfu.compiler.lower import Program, fused
from kungfu.compiler.replay import Replay
from kungfu.policy_definition import Policy
from kungfu.runtime.attachment.choose import SoloAttachment
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.signal.operation.numpy_kernels import norm_squared
from kungfu.training.graph.average import average
from kungfu.training.graph.gradient_message import Averaging
from tests.training.linear import numbers_of
from tests.training.peers import averaging_of, ignore, on_peers

pytestmark = pytest.mark.slow

BOTH_PROGRAMS = pytest.mark.parametrize("made", [fused, lambda program: program], ids=["fused", "unfused"])
Made = Callable[[Program], Program]


def watching(**signals: Callable[[Any], Any]) -> Policy:
    """A policy whose rule never fires, and whose record shows these signals in every step."""

    def body(training: Any) -> Any:
        shown = [signal(training).named(name) for name, signal in signals.items()]
        never = training.mean_loss < -1e9
        return control.always().when(never).call(ignore, *shown)

    return Policy("watching", body)


def told(averaging: Averaging) -> Mapping[str, float]:
    """The numbers of the last step, by their names."""
    return {name: float(value) for (_, name), value in numbers_of(averaging.graph_state).items()}


def stepped(averaging: Averaging, gradients: Sequence[Any]) -> tuple[Mapping[str, float], list[np.ndarray]]:
    """One step: what it told, and the means."""
    means = average(averaging, [tf.constant(one) for one in gradients], loss=1.0)
    return told(averaging), [one.numpy() for one in means]


def stepped_together(
    given: Sequence[Sequence[Any]],
    *,
    batch: int,
    made: Made,
    samples: Sequence[float] = (1.0, 1.0),
    policies: Sequence[Policy] | None = None,
    loss_scale: float | None = None,
) -> list[tuple[Mapping[str, float], list[np.ndarray]]]:
    """One step of peers with these gradients: what it told each, and the means."""
    scale = None if loss_scale is None else lambda: tf.constant(loss_scale)

    def act(rank: int, attachment: LocalAttachment) -> Any:
        known = {"size": len(given), "samples": samples[rank], "batch": batch, "made": made}
        averaging = averaging_of(moments() if policies is None else policies, rank, attachment, **known)
        return stepped(replace(averaging, loss_scale=scale), given[rank])

    return on_peers(len(given), act)


def same(one: float, other: float) -> bool:
    """To the last bit; NaN is NaN."""
    return float(one).hex() == float(other).hex()


def moments() -> list[Policy]:
    scale = lambda training: monitor.gradient_noise_scale(training, decay=1.0)  # noqa: E731
    variance = lambda training: monitor.gradient_variance(training, decay=1.0)  # noqa: E731
    return [watching(noise_scale=scale, gradient_variance=variance)]


@BOTH_PROGRAMS
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("batch", [6, 8], ids=["as many as expected", "fewer than expected"])
def test_the_recorded_norms_are_the_oracles_and_the_replay_of_them_decides_alike(
    made: Made, dtype: Any, batch: int
) -> None:
    rng = np.random.default_rng(3)
    samples, shapes = (1.0, 2.0, 3.0), ((100, 70), (5,), (), (0, 3), (40_001,))
    given = [[np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes] for _ in samples]
    found = stepped_together(given, samples=samples, batch=batch, made=made)
    for (row, means), own in zip(found, given, strict=True):
        assert same(row[LOCAL_NORM], norm_squared(own))
        assert same(row[MEAN_NORM], norm_squared(means))
        assert same(row[MEAN_NORM], found[0][0][MEAN_NORM]), "agreed"
    plan = compile_policies(moments())
    local = [
        {LOCAL_NORM: np.float32(row[LOCAL_NORM]), "samples": n} for (row, _), n in zip(found, samples, strict=True)
    ]
    agreed = {MEAN_NORM: np.float32(found[0][0][MEAN_NORM]), "total_samples": 6.0, "mean_loss": 1.0, "pending": False}
    watched = Replay(plan, size=3).step(local, {**agreed, "step": 1}).watched
    replayed = dict(zip(plan.watched_signals, watched, strict=True))
    for name in ("noise_scale", "gradient_variance"):
        assert same(replayed[name], found[0][0][name])


@BOTH_PROGRAMS
def test_a_peer_without_samples_has_no_norm_and_counts_in_no_estimate(made: Made) -> None:
    given = [[np.array(one, np.float32)] for one in ([3.0, 0.0], [1.0, 0.0], [np.nan, np.inf])]
    rows = [row for row, _ in stepped_together(given, samples=(1.0, 1.0, 0.0), batch=2, made=made)]
    assert [row[LOCAL_NORM] for row in rows] == pytest.approx([9.0, 1.0, math.nan], nan_ok=True)
    assert [row["gradient_variance"] for row in rows] == [2.0, 2.0, 2.0]


@BOTH_PROGRAMS
def test_a_norm_that_policies_compute_with_arrives_like_one_that_is_only_sent(made: Made) -> None:
    own = lambda training: ops.norm_squared(training.grads)  # noqa: E731
    signals = {
        "plain": lambda training: ops.all_reduce(own(training), "mean"),
        "vector": lambda training: ops.max(ops.all_gather(own(training))),
        "chosen": lambda training: ops.all_reduce(ops.where(training.rank == 0, 5.0, own(training)), "sum"),
        "gathered": lambda training: ops.sum(ops.sqrt(ops.all_gather(own(training)))),
        # Of the steps before this one.
        "earlier": lambda training: ops.all_reduce(own(training).cumulative().before_step(), "sum"),
    }
    computed = {
        "root": lambda training: ops.all_reduce(ops.sqrt(own(training)), "sum"),
        "smooth": lambda training: ops.all_reduce(own(training).ema(0.5), "mean"),
        "condition": lambda training: ops.all_reduce(ops.where(own(training) > 10, 1.0, 0.0), "sum"),
    }
    expected = {"plain": 17.0, "vector": 25.0, "chosen": 30.0, "gathered": 8.0, "earlier": 0.0}
    expected |= {"root": 8.0, "smooth": 17.0, "condition": 1.0}
    for chosen, only_sent in ((signals, True), ({**signals, **computed}, False)):
        assert compile_policies([watching(**chosen)]).only_sends_local_norm is only_sent
        given = [[np.array([3.0], np.float32), np.array([[4.0 * rank]], np.float32)] for rank in range(2)]
        rows = [row for row, _ in stepped_together(given, batch=2, made=made, policies=[watching(**chosen)])]
        assert [row[LOCAL_NORM] for row in rows] == [9.0, 25.0]
        for row in rows:
            assert {name: row[name] for name in chosen} == {name: expected[name] for name in chosen}


@pytest.mark.parametrize("attachment", [SoloAttachment(), LocalAttachment(group=480)], ids=["solo", "local"])
@BOTH_PROGRAMS
def test_one_peer_alone_has_the_same_norms(made: Made, attachment: Any) -> None:
    gradients = [np.arange(70_000, dtype=np.float32), np.array([3, 4], np.int64)]
    averaging = averaging_of(moments(), 0, attachment, size=1, batch=1, made=made)
    row, means = stepped(averaging, gradients)
    assert same(row[LOCAL_NORM], norm_squared(gradients))
    assert same(row[MEAN_NORM], norm_squared(means))
    assert math.isnan(row["noise_scale"]), "one peer shows no difference"


@BOTH_PROGRAMS
def test_a_loss_scale_is_taken_out_of_both_norms(made: Made) -> None:
    given = [[np.array([300.0, 400.0], np.float16)]] * 2  # the loss was multiplied by 1024
    for row, _ in stepped_together(given, batch=2, made=made, loss_scale=1024.0):
        assert row[LOCAL_NORM] == row[MEAN_NORM] == 250_000 / 1024**2


def test_off_its_steps_a_norm_is_not_taken() -> None:
    policies = [watching(scale=lambda training: monitor.gradient_noise_scale(training, every=2))]
    averaging = averaging_of(policies, 0, LocalAttachment(group=481), size=1, batch=1, made=fused)
    found = []
    for step in range(4):
        averaging.graph_state.progress.step.assign(step)
        found.append(stepped(averaging, [np.array([3.0, 4.0], np.float32)])[0])
    assert [row[LOCAL_NORM] for row in found] == [-math.inf, 25.0, -math.inf, 25.0]
    assert [row[MEAN_NORM] for row in found] == [-math.inf, 25.0, -math.inf, 25.0]


@BOTH_PROGRAMS
def test_one_trace_takes_the_norms_of_every_view(made: Made) -> None:
    """Of 2 peers, of one by itself, and of 2 again, which have changed places."""
    rng = np.random.default_rng(8)
    given = [rng.standard_normal(1000).astype(np.float32) for _ in range(2)]
    peers = [
        averaging_of(moments(), peer, LocalAttachment(group=482 + peer), size=2, batch=2, made=made)
        for peer in range(2)
    ]
    steps = [tf.function(partial(mean_of, one)) for one in peers]
    job = f"norms-{os.getpid()}-{made.__name__}"
    with ThreadPoolExecutor(2) as pool:
        for view, members in enumerate(((0, 1), (1,), (1, 0))):

            def act(peer: int, view: int = view, members: tuple[int, ...] = members) -> tuple[Mapping[str, float], Any]:
                rank, size = members.index(peer), len(members)
                me = Credentials(job, view, rank, size, b"s")
                peers[peer].attachment.open(me, deadline_s=180.0, addresses=())
                peers[peer].graph_state.view.assign(version=view, size=size, rank=rank)
                peers[peer].graph_state.view.global_batch_size.assign(size)
                mean = steps[peer](given[peer]).numpy()
                return told(peers[peer]), mean

            for peer, (row, mean) in zip(members, pool.map(act, members), strict=True):
                assert same(row[LOCAL_NORM], norm_squared([given[peer]]))
                assert same(row[MEAN_NORM], norm_squared([mean]))
        for one in peers:
            one.attachment.close()
    assert [step.experimental_get_tracing_count() for step in steps] == [1, 1]


def mean_of(averaging: Averaging, gradient: Any) -> Any:
    return average(averaging, [gradient], loss=1.0)[0]


@BOTH_PROGRAMS
def test_the_norms_of_a_step_that_is_undone_reach_no_fold(made: Made) -> None:
    def act(rank: int, attachment: LocalAttachment) -> Any:
        averaging = averaging_of(moments(), rank, attachment, size=2, batch=2, made=made)
        stepped(averaging, [np.array([3.0 + rank], np.float32)])
        before = [one.variable.numpy().tolist() for one in averaging.program.variables]
        row = told(averaging)
        if rank == 1:
            attachment.close()
            return None
        with pytest.raises(tf.errors.UnavailableError):
            stepped(averaging, [np.array([np.inf], np.float32)])
        return before, [one.variable.numpy().tolist() for one in averaging.program.variables], row, told(averaging)

    before, after, row, again = on_peers(2, act)[0]
    assert after == before != []
    assert str(again) == str(row)


def test_sparse_gradients_have_the_norm_of_what_they_add_up_to() -> None:
    averaging = averaging_of(moments(), 0, SoloAttachment(), size=1, batch=1, made=fused)
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([2, 0, 2]), tf.constant([3, 1]))
    average(averaging, [rows], loss=1.0)
    assert told(averaging)[LOCAL_NORM] == 29.0, "of the dense rows 2, 0 and 5"
