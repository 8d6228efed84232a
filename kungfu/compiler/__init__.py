"""The compiler from policies to a plan, and the interpreters: TensorFlow (``.lower``) and ``.replay``."""

from kungfu.compiler.compile import compile_policies
from kungfu.compiler.compiled_policies import CompiledPolicies, MessageLayout, Outcome, Segment
from kungfu.compiler.explain import explain, explain_json, summarize
from kungfu.compiler.fired import FiredRule, fired_on_rescale, fired_rules

__all__ = [
    "CompiledPolicies",
    "FiredRule",
    "MessageLayout",
    "Outcome",
    "Segment",
    "compile_policies",
    "explain",
    "explain_json",
    "fired_on_rescale",
    "fired_rules",
    "summarize",
]
