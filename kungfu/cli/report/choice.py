"""Which of several policies that share one cluster had its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kungfu.cli.report.values import UNKNOWN, figure, number

__all__ = ["Choice", "choice_of", "told_choices"]


@dataclass(frozen=True)
class Choice:
    """A combined rule's wishes by policy, and the policies whose wish it took: several where they wished the same."""

    how: str
    wishes: Mapping[str, float | None]
    winners: tuple[str, ...]


def choice_of(rule: str, saw: Mapping[str, Any]) -> Choice | None:
    """What ``at_most`` or ``first`` chose from; ``None`` for a rule that is not combined.

    >>> choice_of("at_most(grow, schedule)", {"grow": 4.0, "schedule": 3.0}).winners
    ('schedule',)
    >>> choice_of("first(grow, schedule)", {"grow": None, "schedule": 3.0}).winners
    ('schedule',)
    """
    how, parts = _parsed(rule)
    if how not in ("at_most", "first"):
        return None
    wishes = {part: number(saw.get(part)) for part in parts}
    known = {part: wish for part, wish in wishes.items() if wish is not None}
    if not known:
        return Choice(how, wishes, ())
    taken = min(known.values()) if how == "at_most" else next(iter(known.values()))
    same = tuple(part for part, wish in known.items() if wish == taken)
    return Choice(how, wishes, same if how == "at_most" else same[:1])


def told_choices(rule: str, saw: Mapping[str, Any]) -> list[str]:
    """A sentence for the combined rule, and one for each combined rule within it that won."""
    choice = choice_of(rule, saw)
    if choice is None:
        return []
    wishes = ", ".join(f"{name} wanted {_wish(wish)}" for name, wish in choice.wishes.items())
    inner = [line for name in choice.winners for line in told_choices(name, saw)]
    return [f"{wishes}: {_verdict(choice)}", *inner]


def _wish(wish: float | None) -> str:
    return "nothing yet" if wish is None else figure(wish)


def _verdict(choice: Choice) -> str:
    won = " and ".join(choice.winners) or UNKNOWN
    why = "the smallest wish counts" if choice.how == "at_most" else "the first that wants anything counts"
    return f"{won} won ({why})" if choice.winners else "none had a wish"


def _parsed(rule: str) -> tuple[str, list[str]]:
    how, bracket, rest = rule.partition("(")
    return (how, _numbered(_split(rest[:-1]))) if bracket and rest.endswith(")") else (rule, [])


def _split(inside: str) -> list[str]:
    """The parts between the commas that are in no bracket."""
    parts, depth = [""], 0
    for sign in inside:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _numbered(parts: Sequence[str]) -> list[str]:
    """Policies of the same name are recorded as ``name``, ``name_2``, ``name_3``."""
    return [part if (nth := parts[:i].count(part) + 1) == 1 else f"{part}_{nth}" for i, part in enumerate(parts)]
