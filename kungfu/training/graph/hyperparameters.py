"""The optimizer's momentum and weight decay as variables, which rules set while the traced step stays the same.

Keras keeps these numbers as Python floats, which become constants of a traced step. `Hyperparameter` is still such a
float, so that Keras can compare it and write it to a config, but its tensor is the value of a variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from kungfu.compiler import CompiledPolicies
from kungfu.control import Rule, SetVariable
from kungfu.errors import PolicyError

NAMES = ("momentum", "weight_decay")


class Hyperparameter(float):
    """A Python float, the first value of a hyperparameter, whose tensor is the present value.

    Attributes:
        variable: The variable with the present value.
        is_read: True once an op has read the variable, in the step or elsewhere.
    """

    variable: tf.Variable
    is_read: bool = False

    @classmethod
    def named(cls, name: str, value: float) -> Hyperparameter:
        """The hyperparameter `name` with its first value; a value that is one already continues with its variable."""
        made = cls(value)
        now = value.variable.read_value() if isinstance(value, Hyperparameter) else value
        made.variable = tf.Variable(now, dtype=tf.float32, trainable=False, name=f"kungfu/{name}")
        return made

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """TensorFlow: the present value as a tensor."""
        self.is_read = True
        value = self.variable.read_value()
        return value if dtype is None else tf.cast(value, dtype, name=name)


def make_hyperparameters(plan: CompiledPolicies, optimizers: Sequence[Any]) -> dict[str, Hyperparameter]:
    """Replaces the hyperparameters that a plan's rules set by variables in the optimizer; returns them by name.

    Raises ``PolicyError`` if the job has several optimizers, or its optimizer lacks the hyperparameter."""
    made: dict[str, Hyperparameter] = {}
    for name, rule in setting_rules(plan).items():
        if name not in NAMES:
            continue
        if len(optimizers) > 1:
            raise refusal(rule, f"{len(optimizers)} optimizers are attached, and it must be clear whose; attach one")
        optimizer = getattr(optimizers[0], "inner_optimizer", optimizers[0])  # inside a loss-scaling optimizer
        value = getattr(optimizer, name, None)
        if not isinstance(value, float) or (name == "momentum" and value == 0):
            kind = type(optimizer).__name__
            least = "above 0, with which the optimizer keeps a momentum for each weight" if name == "momentum" else ""
            raise refusal(rule, f"{kind} has {name}={value!r}; give {kind}({name}=...) a first number {least}".rstrip())
        made[name] = Hyperparameter.named(name, value)
        setattr(optimizer, name, made[name])
    return made


def refuse_unread(plan: CompiledPolicies, hyperparameters: Mapping[str, Hyperparameter]) -> None:
    """Raises ``PolicyError`` for a hyperparameter that the traced step does not read, so that setting it has no effect;
    called after the step was traced."""
    for name, one in hyperparameters.items():
        if not one.is_read:
            what = f"the step that was traced does not read the optimizer's {name}, so that nothing would change"
            raise refusal(setting_rules(plan)[name], what)


def setting_rules(plan: CompiledPolicies) -> dict[str, Rule]:
    """The acting rules of a plan that set a variable, by the name of the variable."""
    acting = (rule for rule in plan.rules if rule.mode == "acting")
    return {rule.action.name: rule for rule in acting if isinstance(rule.action, SetVariable)}


def refusal(rule: Rule, what: str) -> PolicyError:
    """The error for a rule that sets a variable which it cannot set; the error names the policy and the user's line."""
    assert isinstance(rule.action, SetVariable), rule
    text = f"{rule.origin}: policy {rule.name!r} sets {rule.action.name!r}: {what}"
    return PolicyError(text, policy=rule.name, origin=rule.origin)
