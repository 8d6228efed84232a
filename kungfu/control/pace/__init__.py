"""How often rules may act: cooldowns of one rule, and the budget of a job."""

from kungfu.control.pace.budget import Budget, rescale_cost, rescales_left
from kungfu.control.pace.cooldown import NO_COOLDOWN, Cooldown, last_wish, once_each, with_cooldown

__all__ = [
    "NO_COOLDOWN",
    "Budget",
    "Cooldown",
    "last_wish",
    "once_each",
    "rescale_cost",
    "rescales_left",
    "with_cooldown",
]
