"""Descriptions of programs: what makes two of them differ, and how that is told."""

from __future__ import annotations

from kungfu.runtime.core.program_identity import NOTHING_SAID, Description, ProgramPart, difference

NAMES = ("peer 0", "peer 1")


def described(*parts: str, section: str = "policies") -> Description:
    return Description(tuple(ProgramPart.of(section, one) for one in parts))


def told(reference: Description, other: Description) -> str:
    return difference(reference, other, names=NAMES)


def test_the_digest_depends_on_contents_and_their_order_and_not_on_what_is_shown() -> None:
    one = Description(
        (ProgramPart.of("model", "dense/kernel", "0 (2, 2)"), ProgramPart.of("model", "dense/bias", "1 (2,)"))
    )
    named = Description(
        (ProgramPart.of("model", "dense_7/kernel", "0 (2, 2)"), ProgramPart.of("model", "dense_7/bias", "1 (2,)"))
    )
    assert one.digest == named.digest
    assert told(one, named) == ""
    assert one.digest != Description(one.parts[::-1]).digest
    assert NOTHING_SAID.digest == ""


def test_the_first_part_that_only_one_of_them_has_is_told_for_each() -> None:
    assert told(described("a", "b", "c = a + b", "rule"), described("a", "b", "c = b + a", "other rule")) == (
        "policies: peer 0 has c = a + b, peer 1 has c = b + a"
    )
    assert told(described("a"), described("a", "b", "c")) == "policies: peer 1 has b and 1 more, peer 0 does not"
    assert told(described("a", "b"), described("a")) == "policies: peer 0 has b, peer 1 does not"


def test_the_same_parts_in_another_order_are_told_as_that() -> None:
    assert told(described("a", "b"), described("b", "a")) == (
        "policies: in their order peer 0 has a where peer 1 has b"
    )
    assert told(described("a", "a"), described("a")) == "policies: peer 0 has 2 parts, peer 1 has 1"


def test_parts_that_look_alike_and_are_not_are_told_as_that() -> None:
    one, other = (Description((ProgramPart.of("policies", "c = f(a)", content),)) for content in ("x", "y"))
    assert told(one, other) == ("policies: peer 0 has c = f(a), peer 1 has c = f(a) (in a detail that is not shown)")


def test_what_only_follows_from_other_parts_is_told_where_nothing_else_differs() -> None:
    def one(shown: str, whole: str) -> Description:
        return Description((ProgramPart.of("policies", shown), ProgramPart.of("policies", "", whole)))

    assert told(one("a", "x"), one("b", "y")) == "policies: peer 0 has a, peer 1 has b"
    assert told(one("a", "x"), one("a", "y")) == "policies: peer 0 and peer 1 compute the same in another order"


def test_every_section_that_differs_is_told_up_to_three() -> None:
    def all_of(end: str) -> Description:
        return Description(
            tuple(ProgramPart.of(section, f"{section[0]}{end}") for section in ("versions", "model", "x", "y"))
        )

    assert told(all_of("1"), all_of("2")) == (
        "versions: peer 0 has v1, peer 1 has v2; model: peer 0 has m1, peer 1 has m2; "
        "x: peer 0 has x1, peer 1 has x2; and 1 more"
    )


def test_parts_beyond_a_bound_count_together() -> None:
    many = [ProgramPart.of("model", f"variable {place}") for place in range(30_000)]
    whole, changed = Description.of(many), Description.of([*many[:-1], ProgramPart.of("model", "another")])
    assert len(whole.parts) < 20_002
    assert whole.digest != changed.digest
    assert "10000 more parts" in told(whole, changed)
