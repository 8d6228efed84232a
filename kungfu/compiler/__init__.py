"""From policies to a plan, and the plan's two interpreters: TensorFlow (``.lower``) and NumPy (``.replay``)."""

from kungfu.compiler.compile import compile_policies
from kungfu.compiler.explain import explain, explain_json
from kungfu.compiler.fired import FiredRule, fired_rules
from kungfu.compiler.plan import MessageLayout, Outcome, Plan, Segment
from kungfu.compiler.rescale_rules import RescaleSetting, evaluate_rescale_rules

__all__ = [
    "FiredRule",
    "MessageLayout",
    "Outcome",
    "Plan",
    "RescaleSetting",
    "Segment",
    "compile_policies",
    "evaluate_rescale_rules",
    "explain",
    "explain_json",
    "fired_rules",
]
