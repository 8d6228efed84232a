"""The compiler from policies to a plan, and the interpreters: TensorFlow (``.lower``, ``.fused``) and ``.replay``."""

from kungfu.compiler.compile import compile_policies
from kungfu.compiler.explain import explain, explain_json
from kungfu.compiler.fired import FiredRule, fired_on_rescale, fired_rules
from kungfu.compiler.plan import MessageLayout, Outcome, Plan, Segment

__all__ = [
    "FiredRule",
    "MessageLayout",
    "Outcome",
    "Plan",
    "Segment",
    "compile_policies",
    "explain",
    "explain_json",
    "fired_on_rescale",
    "fired_rules",
]
