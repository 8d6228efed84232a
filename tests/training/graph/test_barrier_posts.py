"""Posts: what asks for a barrier, what of it is pending, what a barrier answers, and the checksum of a step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu import control, ops
from kungfu.compiler.fired import fired_rules
from kungfu.policy_definition import Policy
from kungfu.training.graph.average import average
from kungfu.training.graph.graph_state import StateChecksum
from tests.training.peers import averaging_of, ignore, on_peers


class Posting:
    """A peer that takes steps, and answers at a barrier whatever stands there."""

    def __init__(self, rule, rank, attachment, *, traced):
        self.averaging = averaging_of([Policy("rules", rule)], rank, attachment, size=2, batch=2)
        self.plan, self.graph_state = self.averaging.program.plan, self.averaging.graph_state
        self.inner = tf.function(self.averaged) if traced else self.averaged

    def averaged(self):
        return average(self.averaging, [tf.constant([1.0])], loss=0.0)

    def step(self):
        """What the barrier of a step answers, by rule and step; ``None`` in a step without one."""
        self.inner()
        self.graph_state.progress.step.assign_add(1)
        posts, rules, last = self.graph_state.posts, self.graph_state.rules, self.graph_state.progress.steps()
        if int(posts.everywhere) == 0:
            return None
        posts.serve()
        found = []
        for step in (last - 1, last):
            found += [(one.rule, one.step) for one in fired_rules(self.plan, rules.of_step(step).fetched(), step=step)]
            rules.of_step(step).fired.assign([False] * len(self.plan.rules))
        return found


def barriers(rule, *, steps, traced=False):
    """What the barriers of so many steps answer, by step, on two peers, which agree."""

    def run_steps(rank, attachment):
        peer = Posting(rule, rank, attachment, traced=traced)
        return {step: answered for step in range(1, steps + 1) if (answered := peer.step()) is not None}

    first, second = on_peers(2, run_steps)
    assert first == second
    return first


CHANGES = {
    "rescale": lambda training: control.every(2).rescale(3),
    "evict": lambda training: control.every(2).evict(ops.all_gather(training.rank) == 1),
    "replace": lambda training: control.every(2).replace(ops.all_gather(training.rank) == 1),
}
SETTINGS = {
    "call": lambda training: control.always().call(ignore),
    "batch": lambda training: control.always().set_global_batch_size(8),
    "rate": lambda training: control.always().set_learning_rate(training.step * 1.0),
    "stop": lambda training: control.always().stop(),
    "checkpoint": lambda training: control.always().checkpoint(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_change_fires_beside_a_rule_that_acts_as_often_as_it_can(setting, change):

    def rules(training):
        return SETTINGS[setting](training), CHANGES[change](training)

    found = barriers(rules, steps=5, traced=(setting, change) in (("call", "evict"), ("batch", "rescale")))
    (other,) = {rule for rule, step in found[2] if step == 1}
    # The barrier after step 2 was asked for in step 1, and answers what fires in step 2 while the view is the same.
    assert found == {2: [(other, 1), (change, 2)], 4: [(other, 3), (change, 4)]}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_was_posted_holds_back_all_other_rules_until_its_barrier(change):
    found = barriers(lambda training: (control.always().after(1).call(ignore), CHANGES[change](training)), steps=5)
    assert found == {3: [("ignore", 2), (change, 2)], 5: [("ignore", 4), (change, 4)]}


@pytest.mark.parametrize("rule", [*SETTINGS.values(), lambda training: control.always().rescale(3)])
def test_what_was_posted_is_not_posted_again_before_its_barrier(rule):
    found = barriers(rule, steps=6)
    assert [[step for _, step in answered] for answered in found.values()] == [[1], [3], [5]]
    assert [*found] == [2, 4, 6]


def test_two_settings_whose_steps_alternate_share_their_barriers():
    def rules(training):
        even, odd = control.every(2), control.always().when(training.step % 2 == 1)
        return odd.call(ignore), even.checkpoint()

    assert barriers(rules, steps=4) == {2: [("ignore", 1), ("checkpoint", 2)], 4: [("ignore", 3), ("checkpoint", 4)]}


@pytest.mark.parametrize("change", CHANGES)
def test_a_rule_for_another_size_that_a_hold_has_stopped_asks_for_no_barrier(change):
    def run_steps(rank, attachment):
        peer, found = Posting(CHANGES[change], rank, attachment, traced=change == "evict"), []
        for held in ((), (peer.plan.rules[0].name,), ()):
            peer.graph_state.rules.put_in_force(peer.plan, held=held)
            peer.step()  # may answer what was posted before
            found.append(any(peer.step() is not None for _ in range(4)))
        return found

    first, second = on_peers(2, run_steps)
    assert first == second == [True, change == "replace", True]


# ---- the checksum of what all peers must hold alike ------------------------------------------------------------------

CHECKSUMS = st.integers(0, 2**32 - 1)
CHECKSUM = StateChecksum()


def numbers(checksum: int | None) -> np.ndarray:
    """A peer's share of the message."""
    CHECKSUM.offer(checksum)
    return CHECKSUM.numbers.numpy()


def compared(sums: np.ndarray, size: int) -> int:
    """What the sums of the peers' numbers tell."""
    return int(CHECKSUM.compared(tf.constant(sums), tf.constant(size, tf.int64)))


@settings(max_examples=50)
@given(CHECKSUMS, st.integers(0, 29), st.integers(1, 4000))
def test_sums_of_equal_checksums_tell_nothing_and_one_bit_of_one_peer_is_told(checksum, bit, others):
    alike = others * numbers(checksum)
    assert compared(alike, others) == 0
    assert compared(alike + numbers(checksum ^ 1 << bit), others + 1) == 1


def test_a_step_without_a_checksum_compares_nothing():
    assert compared(3 * numbers(None), 3) == 0
    assert compared(numbers(5) + numbers(None), 2) == 1


@pytest.mark.parametrize("traced", [False, True])
def test_peers_whose_checksums_differ_hold_a_barrier_after_that_step(traced):
    def run_steps(rank, attachment):
        peer, found = Posting(lambda training: control.every(4).checkpoint(), rank, attachment, traced=traced), []
        for checksum in (7, 7 + rank, None, 9):
            peer.graph_state.posts.checksum.offer(checksum)
            found.append((peer.step(), peer.graph_state.posts.checksum.is_unlike()))
        return found

    first, second = on_peers(2, run_steps)
    assert first == second == [(None, False), ([], True), (None, False), (None, False)]
