"""What a step offers to a policy."""

from __future__ import annotations

import copy

import pytest

from kungfu import monitor
from kungfu.errors import PolicyError
from kungfu.signal import GATE_SOURCES, SOURCES, TrainingSignals
from kungfu.signal.sources import SourceKind
from kungfu.signal.training import _MONITORS, _OTHER_WORDS

training = TrainingSignals()


def test_every_source_of_the_table_is_an_attribute_of_its_type() -> None:
    for name in dir(training):
        signal = getattr(training, name)
        assert (signal.source, signal.type, signal.placement) == (name, SOURCES[name].type, SOURCES[name].placement)


def test_an_unknown_source_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=r"a step offers no 'lossy' to a policy; it offers busy_seconds, .*, loss, "):
        _ = training.lossy


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("noise_scale", "monitor.gradient_noise_scale(training)"),
        ("throughput", "monitor.throughput(training)"),
        ("lr", "training.learning_rate"),
        ("batch_size", "training.global_batch_size"),
        ("mean_los", "training.mean_loss"),
    ],
)
def test_what_was_meant_is_what_to_write(name: str, meant: str) -> None:
    with pytest.raises(PolicyError) as caught:
        getattr(training, name)
    assert str(caught.value).startswith(f"write {meant}: a step offers no {name!r}")


def test_every_monitor_is_known_by_its_name_and_every_other_word_stands_for_a_source() -> None:
    assert set(monitor.__all__) <= set(_MONITORS)
    assert set(_MONITORS.values()) <= set(monitor.__all__)
    assert set(_OTHER_WORDS.values()) <= set(SOURCES)


def test_an_agreed_twin_is_an_agreed_source() -> None:
    twins = [kind.agreed_twin for kind in SOURCES.values() if kind.agreed_twin]
    assert twins
    assert all(SOURCES[twin].placement == "agreed" for twin in twins)


def test_what_a_gate_may_read_is_agreed_whole_and_known_before() -> None:
    kinds: list[SourceKind] = [SOURCES[name] for name in GATE_SOURCES]
    assert all((one.placement, one.known, one.type.dtype) == ("agreed", "before", "int64") for one in kinds)


def test_the_signals_of_a_step_can_be_copied() -> None:
    assert copy.copy(training).step.source == "step"
