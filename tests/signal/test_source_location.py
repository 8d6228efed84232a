"""Where a signal was made, and the variable that the user keeps it in."""

from __future__ import annotations

from kungfu.signal import TrainingSignals
from kungfu.signal.source_location import variable_at

training = TrainingSignals()


def test_an_assignment_names_what_it_assigns() -> None:
    plain = training.loss * 2
    annotated: object = training.loss * 2
    spread = (
        training.loss
        * 3
    )  # fmt: skip
    assert variable_at(plain.origin) == "plain"
    assert variable_at(annotated.origin) == "annotated"  # type: ignore[attr-defined]
    assert variable_at(spread.origin) == "spread"


def test_a_statement_that_assigns_to_no_single_variable_names_nothing() -> None:
    one, other = training.loss * 2, training.loss * 3
    kept = {}
    kept["loss"] = training.loss * 4
    assert [variable_at(made.origin) for made in (one, other, kept["loss"])] == ["", "", ""]


def test_a_statement_inside_another_names_what_it_assigns_itself() -> None:
    def inner() -> object:
        inside = training.loss * 2
        return inside.origin

    outer = inner()
    assert variable_at(str(outer)) == "inside"


def test_what_cannot_be_read_names_nothing() -> None:
    for origin in ("", "<stdin>:3", "/no/such/file.py:1", f"{__file__}:99999"):
        assert variable_at(origin) == ""
