"""``fit`` with a PyDataset: its batches by index, in the job's order."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import chain
from typing import Any

import keras
import numpy as np
import pytest

from kungfu.errors import UsageError
from kungfu.keras.data.fit_data import refuse_other_batch
from kungfu.runtime.api import Position
from kungfu.training.data.sampler import StepSlice
from tests.keras.fitting import SAMPLES, Batches, assert_as_keras, network, plan_of, points

X, Y = points()
START = Position(0, 0)


class Numbered(keras.utils.PyDataset):
    """Batches of 8 of the numbers below 30, in an order drawn anew after each epoch; ``changed`` alters a batch."""

    def __init__(self, *, seed: int | None = None, changed: Any = lambda _, *batch: batch, **given: Any) -> None:
        super().__init__(**given)
        self.changed = changed
        self.order, self.told, self.loaded = np.arange(30), [], Counter()
        self.draw = np.random.default_rng(seed)
        self._shuffles = seed is not None
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        self.loaded[index] += 1
        self.threads.add(threading.current_thread().name)
        rows = self.order[8 * index : 8 * index + 8]
        return self.changed(index, rows[:, None].astype(np.float32), rows)

    def on_epoch_begin(self) -> None:
        self.told.append("begin")

    def on_epoch_end(self) -> None:
        self.told.append("end")
        if self._shuffles:
            self.order = self.draw.permutation(30)


class Points(Batches):
    """The points in batches, mirrored anew in each epoch."""

    def __init__(self, size: int, **given: Any) -> None:
        super().__init__(X, Y, size, **given)
        self.weights, self.sign = np.linspace(0.5, 1.5, SAMPLES), 1

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x * self.sign, y, self.weights[index * self.size :][: len(x)]

    def on_epoch_end(self) -> None:
        self.sign = -self.sign


def data(dataset: Any, **given: Any) -> Any:
    return plan_of(dataset, seed=5, epochs=3, **given)


def walked(plan: Any, *, at: Position = START) -> list[list[int]]:
    """The targets of each step of the job from a position on, by one peer alone."""
    source, found = plan.source, list[list[int]]()
    one = plan.micro_batch(StepSlice(at, 1, 1, 0, plan.batch_size))
    while one is not None:
        source.reach(one.step_slice.position)
        found.append(plan.load(one)[1].numpy().tolist())
        one = plan.following(one)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"workers": 3, "max_queue_size": 2}])
def test_it_is_trained_on_as_by_keras(given):
    assert_as_keras(network, lambda: Points(8, **given), epochs=3, validation_data=lambda: Points(16))


def test_each_epoch_has_each_sample_once_in_its_own_order():
    steps = walked(data(Numbered()))
    epochs = [steps[start : start + 4] for start in (0, 4, 8)]
    assert [[len(one) for one in epoch] for epoch in epochs] == [[8, 8, 8, 6]] * 3
    assert [sorted(chain(*epoch)) for epoch in epochs] == [list(range(30))] * 3
    assert len({str(epoch) for epoch in epochs}) == 3
    assert all(one[0] % 8 == 0 and one == list(range(one[0], one[0] + len(one))) for one in steps), "whole batches"


def test_a_dataset_shuffled_by_a_seed_is_the_same_for_a_joiner():
    first, joiner = Numbered(seed=1), Numbered(seed=1)
    steps = walked(data(first))
    assert steps[:4] != [list(range(start, min(30, start + 8))) for start in (0, 8, 16, 24)]
    assert first.told == ["end", "begin", "end", "begin", "end", "begin", "end"], "as often as by Keras"
    other = data(joiner)
    other.source.reach(Position(2, 16))
    assert walked(other, at=Position(2, 16)) == steps[10:]
    assert joiner.told == first.told
    assert sum(joiner.loaded.values()) == 2 + 2, "two to know the sizes, and two to train on"


def test_another_order_on_one_peer_is_refused_when_its_first_batch_differs():
    coordinator, other = data(Numbered(seed=1)), data(Numbered(seed=2))
    assert coordinator.described == other.described, "nothing is shuffled yet"
    for one in (coordinator, other):
        one.source.take(np.arange(8))
    with pytest.raises(UsageError, match=r"epoch 1 of this fit begins with another batch here.*on_epoch_end"):
        refuse_other_batch(other, 0, coordinators=coordinator.first_batch_of(0))
    refuse_other_batch(coordinator, 0, coordinators=coordinator.first_batch_of(0))
    refuse_other_batch(other, 0, coordinators=-1)
    assert coordinator.first_batch_of(3) == -1, "there is no such epoch"


def test_inputs_may_be_changed_at_random_by_each_peer():
    def noisy(_: int, x: Any, y: Any) -> Any:
        return x + np.random.default_rng().normal(size=x.shape).astype(np.float32), y

    one, other = (data(Numbered(changed=noisy)) for _ in range(2))
    assert one.described == other.described


def test_its_workers_load_in_threads_and_in_order(capsys):
    dataset = Numbered(workers=3, max_queue_size=2, use_multiprocessing=True)
    steps = walked(data(dataset))
    assert steps == walked(data(Numbered()))
    assert any(name.startswith("kungfu-batches") for name in dataset.threads)
    assert "Numbered(use_multiprocessing=True): a peer of a job cannot be forked" in capsys.readouterr().err


def test_an_error_of_one_batch_names_the_samples_and_comes_out():
    class Failing(Numbered):
        def __getitem__(self, index: int) -> Any:
            if self.told:
                raise OSError("disk gone")
            return super().__getitem__(index)

    for workers in (1, 2):
        with pytest.raises(OSError, match="disk gone") as caught:
            walked(data(Failing(workers=workers)))
        assert "while loading 8 samples" in caught.value.__notes__[0]


def test_fewer_steps_than_a_dataset_has_continue_in_the_next_epoch():
    steps = walked(data(Numbered(), steps_per_epoch=3, shuffle=False))
    assert len(steps) == 9
    assert list(chain(*steps))[:60] == [*range(30), *range(30)]
    assert [len(one) for one in steps] == [8] * 9, "a step takes samples across the batches"

    class Endless(Numbered):
        num_batches = None

        def __getitem__(self, index: int) -> Any:
            rows = np.arange(8 * index, 8 * index + 8)
            return rows[:, None], rows

    assert list(chain(*walked(data(Endless(), steps_per_epoch=2)))) == list(range(48))
    assert list(chain(*walked(data(Endless(), steps_per_epoch=2), at=Position(2, 0)))) == list(range(32, 48))


def test_more_steps_than_it_has_end_with_it():
    assert len(walked(data(Numbered(), steps_per_epoch=9))) == 12


def test_a_batch_of_another_size_in_the_middle_is_an_error():
    uneven = Numbered(changed=lambda index, x, y: (x[:5], y[:5]) if index == 2 else (x, y))
    with pytest.raises(UsageError, match="whose batch 3 has 5 samples where 8 were expected"):
        walked(data(uneven, shuffle=False))
