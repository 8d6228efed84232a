"""What a step offers to a policy."""

from __future__ import annotations

import ast
import copy
import inspect
from itertools import pairwise

import pytest

from kungfu import monitor
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.signal import GATE_SOURCES, SOURCES, Source, TrainingSignals
from kungfu.signal.training import _MONITORS, _OTHER_WORDS
from tests.compiler.small import plan_showing

training = TrainingSignals()


def test_an_unknown_source_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        PolicyError,
        match=r"a step offers no 'lossy' to a policy; it offers barrier_due, base_.*, busy_seconds, .*, loss, ",
    ):
        _ = training.lossy


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("noise_scale", "kf.monitor.gradient_noise_scale(training)"),
        ("throughput", "kf.monitor.throughput(training)"),
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
    monitors = {name for name in monitor.__all__ if not isinstance(getattr(monitor, name), type)}
    assert monitors <= set(_MONITORS)
    assert set(_MONITORS.values()) <= monitors
    assert set(_OTHER_WORDS.values()) <= set(SOURCES)


def test_an_agreed_counterpart_is_an_agreed_source() -> None:
    counterparts = [kind.agreed_counterpart for kind in SOURCES.values() if kind.agreed_counterpart]
    assert counterparts
    assert all(SOURCES[one].placement == "agreed" for one in counterparts)


def test_what_a_gate_may_read_is_agreed_whole_and_known_before() -> None:
    kinds = [SOURCES[name] for name in GATE_SOURCES]
    assert all((one.placement, one.known, one.type.dtype) == ("agreed", "before", "int64") for one in kinds)


def test_the_signals_of_a_step_can_be_copied() -> None:
    assert copy.copy(training).step.source == "step"


def test_every_source_is_a_property_of_its_type_with_its_meaning_and_its_unit() -> None:
    for name, kind in SOURCES.items():
        text = " ".join(str(getattr(TrainingSignals, name).__doc__).split())
        assert text.lower().startswith(kind.meaning.lower()), name
        assert str(kind.type) in text
        assert kind.unit in text
        assert f"{kind.placement})" in text
        signal = getattr(training, name)
        assert isinstance(signal, Source)
        assert (signal.source, signal.type, signal.placement) == (name, kind.type, kind.placement)
    assert dir(training) == sorted([*SOURCES, "fed", "published", "view_steps"])


def test_the_text_under_each_declared_signal_says_its_meaning_and_its_unit() -> None:
    (kind,) = [one for one in ast.parse(inspect.getsource(TrainingSignals)).body if isinstance(one, ast.ClassDef)]
    texts = {}
    for declared, text in pairwise(kind.body):
        if isinstance(declared, ast.AnnAssign):
            texts[ast.unparse(declared.target)] = " ".join(ast.literal_eval(ast.unparse(text)).split())
    assert set(texts) == set(SOURCES)
    for name, one in SOURCES.items():
        assert texts[name].lower().startswith(one.meaning.lower()), name
        assert str(one.type) in texts[name]
        assert one.unit in texts[name]


def test_a_misspelt_name_is_an_error_of_a_type_checker() -> None:
    names = {name for name, one in vars(TrainingSignals).items() if isinstance(one, property)}
    assert names | {"fed", "published"} == set(dir(training))


def test_the_steps_of_a_view_are_counted_from_1_and_anew_after_a_rescale() -> None:
    replay, counts = Replay(plan_showing(lambda t: t.view_steps), size=2), []
    for number, size in enumerate((2, 2, 2, 3), start=1):
        if size != replay.size:
            replay.rescale(size)
        counts.append(int(replay.step([{}] * size, {"step": number, "pending": False}).inputs_whole[0]))
    assert counts == [1, 2, 3, 1]
