"""Finding plans: the two baselines and the planner."""

from kungfu.tune.plan.elastic import plan_deadlines, plan_elastic
from kungfu.tune.plan.naive import best_naive
from kungfu.tune.plan.search import Search, Steps
from kungfu.tune.plan.static import best_static, fastest

__all__ = ["Search", "Steps", "best_naive", "best_static", "fastest", "plan_deadlines", "plan_elastic"]
