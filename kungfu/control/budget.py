"""Budgets: limits on how often one policy, or all policies of a job, may change the cluster.

A budget is a token bucket in ordinary dataflow, so that all interpreters of a plan count identically. Every change that
takes place is charged, whoever requested it, and a rule is held back before it makes a request.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kungfu.errors import PolicyError
from kungfu.ops import maximum, minimum, where
from kungfu.signal import Signal, Source, as_signal, fold
from kungfu.signal.whole_number import is_whole_number

_MOST = (1 << 20) - 1


@dataclass(frozen=True)
class Budget:
    """A limit on changes of the cluster: `rescales` at once, and one more for every ``per_steps / rescales`` steps.

    A token bucket: it starts full with `rescales` tokens, refills evenly over `per_steps` steps, and every change of
    the membership costs one token, whoever requested it. While less than one token is left, no rule may rescale, evict
    or replace, and such requests of a hook are ignored. Several rules in one step each need a token, in the order of
    the policies. Over any n steps, policies thus change the cluster at most ``rescales * (1 + n / per_steps)`` times. A
    rule that is held back is recorded once, until a token is available again.

    With `replacements`, replaced peers are counted in a separate bucket with this number of tokens: each replaced peer
    costs one of these tokens, and replacing peers costs no rescale. So a policy that replaces stragglers and a
    policy that scales do not use up each other's budget. A rule that would replace more peers than tokens are left
    replaces only that number, the slowest first if speeds are measured. Only replacements decided by a rule, a hook or
    a command count; the change that replaces lost peers costs a rescale. (If all peers are replaced at once, one of
    them stays a step longer than the others, and replacing it takes two changes of the size, which cost two rescales.)

    A job's budget (``attach(budget=)``) holds back the rules of all policies. Without a job's budget, the budget of a
    policy (``@kf.policy(budget=)``; prebuilt policies that decide by measurements have one) holds back only that
    policy's rules; nevertheless, it is charged for every change, whoever requested the change.

    Args:
        rescales: Tokens, from 1 to 2 ** 20 - 1.
        per_steps: Steps in which an empty bucket fills, from 1 to 2 ** 20 - 1.
        replacements: Tokens for replaced peers, from 1 to 2 ** 20 - 1; if ``None``, replacing peers costs one rescale,
            whatever the number of replaced peers.

    Raises:
        PolicyError: A number is not whole, or out of range.

    Cost:
        Two int64 of state, six with `replacements`, and two truth values for each rule that changes the cluster; no
        message.

    On rescale:
        The tokens are kept, minus the cost of the rescale.
    """

    rescales: int
    per_steps: int
    replacements: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_counted = name != "replacements" or value is not None
            if is_counted and not is_whole_number(value, least=1, most=_MOST):
                raise PolicyError(f"Budget({name}={value!r}): takes a whole number from 1 to {_MOST}")

    def limit_on(self, *, replacing: bool) -> str:
        """The limit on rescales, or on replacements, as text.

        Args:
            replacing: True for a rule that replaces peers, False for a rule that changes the size.

        >>> Budget(1, 100).limit_on(replacing=True), Budget(8, 800, 4).limit_on(replacing=True)
        ('1 rescale in 100 steps', '4 replacements in 800 steps')
        """
        apart = replacing and self.replacements is not None
        count, noun = (self.replacements, "replacement") if apart else (self.rescales, "rescale")
        return f"{count} {noun}{'' if count == 1 else 's'} in {self.per_steps} step{'' if self.per_steps == 1 else 's'}"


@dataclass(frozen=True, eq=False)
class Spent:
    """The requests of earlier rules in the same step, as int64.

    Attributes:
        rescales: The number of rules that change the size.
        exchanges: The number of rules that replace peers.
        peers: The number of peers that these rules replace.
    """

    rescales: Signal
    exchanges: Signal
    peers: Signal

    @classmethod
    def nothing(cls) -> Spent:
        """The value before the first rule of a step: no requests."""
        return cls(as_signal(0), as_signal(0), as_signal(0))

    def and_rescale(self, fires: Signal) -> Spent:
        """These requests, and that of one more rule that changes the size, which counts if `fires` is true."""
        return replace(self, rescales=self.rescales + where(fires, 1, 0))

    def and_exchange(self, fires: Signal, peers: Signal) -> Spent:
        """These requests, and that of one more rule that replaces `peers` peers, which counts if `fires` is true."""
        more = where(fires, peers, 0)
        return replace(self, exchanges=self.exchanges + where(fires, 1, 0), peers=self.peers + more)


@dataclass(frozen=True, eq=False)
class _Remainder:
    """The remaining tokens of a budget, in units of ``1 / per_steps`` token: int64, equal on all peers. `replacements`
    is ``None`` if replacing peers costs rescales."""

    budget: Budget
    rescales: Signal
    replacements: Signal | None

    def spent_rescales(self, spent: Spent) -> Signal:
        """The number of this budget's rescales that the requests of earlier rules use up."""
        return spent.rescales if self.replacements is not None else spent.rescales + spent.exchanges

    def whole_rescales(self, spent: Spent) -> Signal:
        """The number of whole rescales left."""
        return self.rescales // self.budget.per_steps - self.spent_rescales(spent)

    def whole_replacements(self, spent: Spent) -> Signal:
        """The number of peers that may still be replaced; without a bucket for replacements, of rescales left."""
        if self.replacements is None:
            return self.whole_rescales(spent)
        return self.replacements // self.budget.per_steps - spent.peers


@dataclass(frozen=True, eq=False)
class Allowance:
    """The remaining tokens of one or several budgets; a change must be allowed by all of them."""

    remainders: tuple[_Remainder, ...]

    @classmethod
    def of(cls, budgets: Iterable[Budget]) -> Allowance:
        """The remaining tokens of these budgets in a step. Cost: two or six int64 of state per budget; no message."""
        return cls(tuple(map(_remainder, dict.fromkeys(budgets))))

    @property
    def counts_replacements(self) -> bool:
        """True if one of the budgets counts replaced peers separately."""
        return any(one.replacements is not None for one in self.remainders)

    def allows(self, spent: Spent, *, replacing: bool) -> Signal:
        """True if all budgets have a rescale left; with `replacing`, if all allow at least one peer to be replaced."""
        left = (one.whole_replacements(spent) if replacing else one.whole_rescales(spent) for one in self.remainders)
        return functools.reduce(minimum, left) >= 1

    def rescales_left(self, spent: Spent) -> Signal:
        """The number of rescales left, with the fraction of a refilling token: float32."""
        left = (one.rescales / one.budget.per_steps - one.spent_rescales(spent) for one in self.remainders)
        return functools.reduce(minimum, left).named("rescales_left")

    def whole_rescales_left(self, spent: Spent) -> Signal:
        """The number of whole rescales left: int64."""
        left = (one.whole_rescales(spent) for one in self.remainders)
        return functools.reduce(minimum, left).named("rescales_left")

    def replacements_left(self, spent: Spent) -> Signal:
        """The number of peers that may be replaced, by the budgets that count replacements: int64."""
        left = (one.whole_replacements(spent) for one in self.remainders if one.replacements is not None)
        return functools.reduce(minimum, left).named("replacements_left")


def _remainder(budget: Budget) -> _Remainder:
    if budget.replacements is None:
        return _Remainder(budget, _rescale_parts(budget), None)
    return _Remainder(budget, _rescale_parts_without_exchanges(budget), _replacement_parts(budget, budget.replacements))


# The buckets count parts of a token, so that the gain of a step is a whole number: a step adds `rescales` parts, and a
# change costs `per_steps` parts. With floats, an error in the last bit could make peers disagree about a rescale.


def _refilled(parts: Signal, *, tokens: int, per_steps: int) -> Signal:
    """The content of a bucket after the refill of one step: negative content counts as 0, and no bucket overflows."""
    return minimum(maximum(parts, 0) + tokens, tokens * per_steps)


def _rescale_parts(budget: Budget) -> Signal:
    tokens, price = budget.rescales, budget.per_steps

    def update(state: tuple[Signal, ...], view: Signal) -> tuple[Signal, ...]:
        parts, before = state
        changed = (before >= 0) & (view > before)  # a resumed job begins with the first view again
        return _refilled(where(changed, parts - price, parts), tokens=tokens, per_steps=price), view

    return fold(update, (tokens * price, -1), Source("view"), output=lambda state: state[0])


def _rescale_parts_without_exchanges(budget: Budget) -> Signal:
    tokens, price = budget.rescales, budget.per_steps

    # The state: the parts, and the previous step's view, its size, and the peers replaced so far.
    def update(state: tuple[Signal, ...], view: Signal, size: Signal, replaced: Signal) -> tuple[Signal, ...]:
        parts, view_before, size_before, replaced_before = state
        changed = (view_before >= 0) & (view > view_before)
        # If the size is the same and peers were replaced by decision, replacements are charged instead.
        exchanged = (size == size_before) & (replaced > replaced_before)
        left = where(changed & ~exchanged, parts - price, parts)
        return _refilled(left, tokens=tokens, per_steps=price), view, size, replaced

    seen = (Source("view"), Source("size"), Source("replaced_peers"))
    return fold(update, (tokens * price, -1, 0, 0), *seen, output=lambda state: state[0])


def _replacement_parts(budget: Budget, replacements: int) -> Signal:
    price = budget.per_steps

    def update(state: tuple[Signal, ...], replaced: Signal) -> tuple[Signal, ...]:
        parts, before = state
        # The count of a resumed job begins at 0 again.
        peers = where(before >= 0, maximum(replaced - before, 0), 0)
        return _refilled(parts - peers * price, tokens=replacements, per_steps=price), replaced

    return fold(update, (replacements * price, -1), Source("replaced_peers"), output=lambda state: state[0])


def news_of_held(blocked: Signal, *, allowed: Signal, gate: Signal) -> Signal:
    """True in the first step of the gate in which `blocked` holds after `allowed` was last true.

    Cost: two truth values of state.
    """

    # The state: True if the rule is newly blocked, and True if that was reported since the rule was last free.
    def update(state: tuple[Signal, ...], now: Signal, free: Signal) -> tuple[Signal, ...]:
        return now & ~state[1], (state[1] | now) & ~free

    return gate & replace(fold(update, (False, False), blocked, allowed, output=lambda state: state[0]), gate=gate)
