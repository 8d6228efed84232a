"""From policies to a plan, and the plan's two interpreters: TensorFlow (``.lower``) and NumPy (``.replay``)."""

from kungfu.compiler.compile import compile_policies
from kungfu.compiler.explain import explain, explain_json
from kungfu.compiler.plan import Outcome, Plan, RiderLayout, Segment
from kungfu.compiler.settle import Settled, settle

__all__ = [
    "Outcome",
    "Plan",
    "RiderLayout",
    "Segment",
    "Settled",
    "compile_policies",
    "explain",
    "explain_json",
    "settle",
]
