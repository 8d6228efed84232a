"""How often rules may act: cooldowns of one rule, and the budget of a job."""

from kungfu.control.pace.budget import Budget, credit_of, news_of_held, rescale_cost
from kungfu.control.pace.cooldown import NO_COOLDOWN, Cooldown, last_wish, once_each, with_cooldown

__all__ = [
    "NO_COOLDOWN",
    "Budget",
    "Cooldown",
    "credit_of",
    "last_wish",
    "news_of_held",
    "once_each",
    "rescale_cost",
    "with_cooldown",
]
