"""Samples of partitions over peers that join, leave and are lost, with the assignment in a variable."""

from __future__ import annotations

import numpy as np
import pytest

from kungfu.errors import InternalError
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.sampler import StepSlice


def peer() -> PartitionSampler:
    one = PartitionSampler([5, 0, 8, 7], 3)
    one.make_variable(most_peers=4)
    return one


def step_of(peers: dict[int, PartitionSampler], position: Position, *, version: int, batch: int) -> list[int]:
    """What all of them take; each reads ahead, too."""
    taken = []
    for rank, one in enumerate(peers.values()):
        slice_ = StepSlice(position, version, len(peers), rank, batch)
        one.reach(slice_, list(peers))
        share = one.indices(slice_).tolist()
        ahead = one.after(slice_)
        if ahead.position.epoch < 2:
            one.indices(ahead)
        assert len(share) <= one.largest_share(slice_)
        taken += share
    return taken


def test_each_sample_comes_once_an_epoch_and_a_joiner_goes_on_from_the_variable_of_another():
    everyone = {number: peer() for number in range(4)}
    views = [([0, 1], 4), ([0, 1], 5), ([0, 1, 2], 6), ([2, 1], 3), ([1, 3], 4)]
    position, seen, version, members = Position(0, 0), [], 0, []
    for turn in range(40):
        wanted, batch = views[min(turn, len(views) - 1)]
        if wanted != members:
            version += 1
            # As the state is: those who come in hold what one that stays held at the end of the step before.
            stays = next((one for one in members if one in wanted), None)
            for one in set(wanted) - set(members):
                if stays is not None:
                    everyone[one]._variable.assign(everyone[stays]._variable)
            members = wanted
        peers = {one: everyone[one] for one in members}
        first = step_of(peers, position, version=version, batch=batch)
        assert step_of(peers, position, version=version, batch=batch) == first, "a step that is done again"
        seen += first
        after = peers[members[0]].after(StepSlice(position, version, len(members), 0, batch)).position
        if after.epoch > position.epoch:
            assert sorted(seen) == list(range(20))
            seen = []
        position = after
        if position.epoch == 2:
            return
    raise AssertionError("no end")


def test_a_run_that_is_resumed_goes_on_from_the_variable_and_what_explains_nothing_is_an_error():
    one, other = peer(), peer()
    slice_ = StepSlice(Position(0, 0), 1, 1, 0, 6)
    one.reach(slice_, [0])
    after = one.after(slice_)
    one.reach(after, [0])
    other.reach(slice_, [0])
    other._variable.assign(one._variable)
    for position in (after.position, one.after(after).position):
        again = StepSlice(position, 1, 1, 0, 6)
        one.reach(again, [0])
        other.reach(again, [0])
        np.testing.assert_array_equal(one.indices(again), other.indices(again))
    with pytest.raises(InternalError, match="the partitions that peers hold are not known at"):
        one.reach(StepSlice(Position(7, 3), 1, 1, 0, 6), [0])
    with pytest.raises(InternalError, match=r"a batch at .* was cut, and the peers are at"):
        one.indices(StepSlice(Position(7, 3), 1, 1, 0, 6))
