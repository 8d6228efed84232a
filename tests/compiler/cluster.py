"""A cluster of TensorFlow programs in one process, and steps of invented sources, to hold against the NumPy replay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.compiler import CompiledPolicies, Outcome
from kungfu.compiler.lower import Program, lower
from kungfu.compiler.replay import Replay

DEADLINE_S = 180.0

Local = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Cluster:
    """One program a peer, each with the two functions that a step calls; a step may have fewer peers than there are."""

    programs: list[Program]
    piggybacked: list[Callable[..., Any]]
    conclude: list[Callable[..., Any]]
    meeting: Meeting

    def restore(self, replay: Replay) -> None:
        """Gives the peers of the view the states that the replay holds for them."""
        for rank, program in enumerate(self.programs[: replay.size]):
            restore(program, replay, rank=rank)


class Meeting:
    """Where the peers of a step, one thread each, add up a message in rank order."""

    def __init__(self, most: int) -> None:
        self.tags: list[list[str]] = [[] for _ in range(most)]
        self.convene(most)

    def convene(self, size: int) -> None:
        """Waits for this many peers from now on."""
        self.vectors: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=DEADLINE_S)

    def all_reduce_of(self, rank: int) -> Callable[[list[Any], str], list[Any]]:
        def all_reduce(vectors: list[Any], tag: str) -> list[Any]:
            return [tf.numpy_function(lambda one: self.summed(one, rank=rank, tag=tag), [v], v.dtype) for v in vectors]

        return all_reduce

    def summed(self, vector: Any, *, rank: int, tag: str) -> Any:
        self.vectors[rank] = vector
        self.tags[rank].append(tag)
        self.barrier.wait()
        total = reduce(np.add, self.vectors)
        self.barrier.wait()
        return total


def eager_cluster(plan: CompiledPolicies, *, size: int) -> Cluster:
    """A cluster whose programs run op by op."""
    return _cluster(plan, size=size, wrapped=lambda function: function)


def traced_cluster(plan: CompiledPolicies, *, size: int) -> Cluster:
    """A cluster whose programs run as graphs."""
    return _cluster(plan, size=size, wrapped=partial(tf.function, autograph=False, reduce_retracing=True))


def _cluster(plan: CompiledPolicies, *, size: int, wrapped: Callable[[Any], Any]) -> Cluster:
    programs, meeting = [lower(plan) for _ in range(size)], Meeting(size)
    conclude = [
        wrapped(partial(program.conclude, all_reduce=meeting.all_reduce_of(rank)))
        for rank, program in enumerate(programs)
    ]
    return Cluster(programs, [wrapped(one.piggybacked) for one in programs], conclude, meeting)


def step(cluster: Cluster, local: Local, agreed: Mapping[str, Any]) -> list[Outcome]:
    """One step of the peers with these local sources; returns their outcomes in rank order."""
    size = len(local)
    own = [as_tensors(one, rank=rank, agreed=agreed, local=local) for rank, one in enumerate(local)]
    piggybacked = [peer(one) for peer, one in zip(cluster.piggybacked[:size], own, strict=True)]
    summed = reduce(np.add, [one.numpy() for one in piggybacked])
    cluster.meeting.convene(size)
    concluding = list(zip(cluster.conclude[:size], own, strict=True))
    # Peers that wait for no message of each other need no threads, which would fight for Python's lock.
    if not any(one.message for one in cluster.programs[0].plan.after):
        return [outcome_of(peer(one, summed)) for peer, one in concluding]
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(peer, one, summed) for peer, one in concluding]
        return [outcome_of(one.result(DEADLINE_S)) for one in futures]


def outcome_of(parts: Any) -> Outcome:
    """The outcome of a step, in NumPy."""
    return Outcome(*(part.numpy() for part in parts))


def as_tensors(own: Mapping[str, Any], *, rank: int, agreed: Mapping[str, Any], local: Local) -> dict[str, Any]:
    """The sources that the step offers to one peer's program."""
    offered = {**derived(local), **agreed, **own, "rank": rank, "size": len(local)}
    return {
        name: [tf.constant(leaf, tf.float32) for leaf in value]
        if isinstance(value, list)
        else tf.constant(value, tf.float32 if isinstance(value, (float, np.floating)) else None)
        for name, value in offered.items()
    }


def lone_peer(*, number: int = 1, seed: int = 0) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The invented local sources of the only peer in step ``number``, and all sources as tensors."""
    local, agreed = invented(np.random.default_rng(seed), number=number, size=1)
    return local[0], as_tensors(local[0], rank=0, agreed=agreed, local=local)


def derived(local: Local) -> dict[str, Any]:
    """The agreed sources that follow from the local ones, by the textbook formula in float32."""
    samples = np.array([one["samples"] for one in local], np.float32)
    total = np.float32(samples.sum())
    weighted = [one for one, own in zip(local, samples, strict=True) if own > 0]
    means = [
        reduce(np.add, [np.asarray(one["grads"][leaf], np.float32) * (one["samples"] / total) for one in weighted])
        for leaf in range(len(local[0]["grads"]))
    ]
    loss = reduce(np.add, [np.float32(one["loss"]) * (one["samples"] / total) for one in weighted])
    return {"mean_grads": means, "total_samples": total, "mean_loss": np.float32(loss)}


def invented(rng: np.random.Generator, *, number: int, size: int, **changed: Any) -> tuple[list[Any], dict[str, Any]]:
    """The sources of step `number`: numbers on a grid of quarters, so that sums of them are exact."""

    def quarters(*shape: int) -> Any:
        return (rng.integers(-8, 9, shape) / 4).astype(np.float32)

    local = [
        {
            "grads": [quarters(3), quarters(2, 2)],
            "loss": np.float32(quarters()),
            "samples": np.float32(2),
            # Alone, a peer without micro-batches knows no noise scale.
            "micro_batches": 1 if size == 1 else 1 + number % 2,
            "micro_batch_variance": np.float32(np.nan if size == 1 or number % 2 == 0 else abs(quarters())),
            "busy_seconds": np.float32(abs(quarters()) + 0.25),
            "step_seconds": np.float32(np.nan if number < 3 else 0.5),
            "clock_seconds": np.float32(number / 2),
            "rescale_seconds": np.float32(np.nan if number < 3 else 0.25),
            "host_joiners": int(number % 5 == 4),
            "score": np.float32(quarters()),
            "price": np.float32(quarters() if number % 3 == 0 else np.nan),
        }
        for _ in range(size)
    ]
    agreed = {
        "step": number,
        **dict.fromkeys(("pending", "barrier_due", "change_due", "replacing", "replacement_refused"), False),
        "target_size": 0,
        "min_size": 1,
        "max_size": 8,
        "refused_size": 0,
        "replaced_peers": number // 4,
        "view": 1 + number // 3,
        "epoch_samples": 0,
        "epoch": number // 7,
        "job_samples": 400,
        "global_batch_size": 2 * size,
        "local_batch_size": np.float32(2),
        "learning_rate": np.float32(0.125),
        "samples_done": 2 * size * (number - 1),
    }
    return local, {**agreed, **changed}


def assert_same(outcomes: Sequence[Outcome], expected: Outcome, *, atol: float = 1e-5) -> None:
    """All peers decided alike, and as expected; numbers to float tolerance."""
    for one in outcomes:
        for name in ("fired", "masks", "inputs_whole", "watched_whole"):
            np.testing.assert_array_equal(getattr(one, name), getattr(expected, name), err_msg=name)
        for name in ("targets", "inputs", "watched", "fractions"):
            np.testing.assert_allclose(getattr(one, name), getattr(expected, name), rtol=1e-4, atol=atol, err_msg=name)


def states(program: Program) -> list[Any]:
    """What the folds of one peer hold."""
    return [one.variable.numpy() for one in program.variables]


def restore(program: Program, replay: Replay, *, rank: int) -> None:
    """Gives the folds of a peer's program what they hold in the replay."""
    for one, value in zip(program.variables, replayed_states(replay, rank=rank), strict=True):
        one.variable.assign(value)


def replayed_states(replay: Replay, *, rank: int) -> list[Any]:
    """What the folds of that peer hold in the replay."""
    return [field[rank] for fields in replay.states.values() for field in fields]
