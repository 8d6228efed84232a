"""Signals as expressions in the user's names, in Python's syntax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kungfu.compiler.explain.labels import source_label
from kungfu.signal import Collective, Constant, Fold, Map, Signal, Source, topological

_LONGEST_TEXT, _LARGEST_TREE = 160, 60  # limits of an expression, in characters and in nodes
_COMPARISON, _POWER, _CALL = 4, 8, 9
_BINDING = {
    "or": 1,
    "and": 2,
    "not": 3,
    "add": 5,
    "subtract": 5,
    "negative": 7,
    "power": _POWER,
    **dict.fromkeys(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"), _COMPARISON),
    **dict.fromkeys(("multiply", "divide", "floor_divide", "modulo"), 6),
}
_SYMBOLS = {"and": "and", "or": "or", "not": "not "}
_COLLECTIVES = {"sum": "sum_of_peers", "mean": "mean_of_peers", "gather": "of_each_peer", "carry": "of_rank_0"}
_Written = tuple[str, int]  # the text, and the binding of its outermost operator


@dataclass(frozen=True)
class Expressions:
    """The expressions of nodes, over the nodes that have a name."""

    signals: Mapping[Signal, str]
    variables: Mapping[Signal, str]

    def written(self, node: Signal) -> str:
        """The expression of a node, over variables only if it would be long otherwise; empty if it is long anyway."""
        texts = (_Writer(names).written(node) for names in (self.signals, self.variables))
        return self._signal(node) or next((text for text in texts if text), "")

    def watched(self, roots: Sequence[Signal]) -> list[str]:
        """The named signals and monitors that these signals read, with their sources; then the other sources."""
        named, sources, behind = dict[str, None](), dict[str, None](), set[str]()
        seen, waiting = set[Signal](), [(root, True) for root in reversed(roots)]
        while waiting:
            node, is_root = waiting.pop()
            if node in seen or isinstance(node, Constant):
                continue
            seen.add(node)
            if isinstance(node, Source):
                sources[source_label(node)] = None
            elif name := self._signal(node) or ("" if is_root else node.monitor):
                below = {one.source for one in topological((node,)) if isinstance(one, Source)}
                is_fed = name in below  # the fold of a fed value has the value's name
                named[name if is_fed or not below else f"{name} (from {', '.join(sorted(below))})"] = None
                behind |= below
            else:
                read = node.observed if isinstance(node, Fold) else node.inputs  # not the steps of a fold
                waiting += [(one, False) for one in reversed(read)]
        return [*named, *(one for one in sources if one not in behind)]

    def _signal(self, node: Signal) -> str:
        return self.signals.get(node) or node.name


@dataclass(frozen=True)
class _Writer:
    """Writes expressions that end at named nodes; `names` are names beyond those that the nodes themselves have."""

    names: Mapping[Signal, str]

    def written(self, node: Signal) -> str:
        """The expression of a node whatever its name; empty if it would be long."""
        # Shared nodes count as often as they would be written.
        size: dict[Signal, int] = {}
        for one in topological((node,)):
            size[one] = 1 if one is not node and self._name(one) else 1 + sum(size[inner] for inner in one.inputs)
        text = self._expanded(node)[0] if size[node] <= _LARGEST_TREE else ""
        return text if len(text) <= _LONGEST_TEXT else ""

    def _name(self, node: Signal) -> str:
        return self.names.get(node) or node.name or node.monitor

    def _written(self, node: Signal) -> _Written:
        if isinstance(node, Source):
            return source_label(node), _CALL
        if isinstance(node, Constant):
            value = node.value
            is_fraction = isinstance(value, float) and not value.is_integer()
            return f"{value:g}" if is_fraction else f"{value:.0f}" if isinstance(value, float) else f"{value}", _CALL
        if name := self._name(node):
            return name, _CALL
        return self._expanded(node)

    def _expanded(self, node: Signal) -> _Written:
        if isinstance(node, Map):
            return self._applied(node)
        if isinstance(node, Collective):
            return f"{_COLLECTIVES[node.reduction]}({self._written(node.operand)[0]})", _CALL
        if not isinstance(node, Fold):
            return self._written(node)
        # A fold without a condition has the condition True.
        observed = [one for one in node.observed if not (isinstance(one, Constant) and one.value is True)]
        inputs = [self._written(one)[0] for one in observed]
        weight = [f"weight {one:g}" for one in _ema_weight(node)]
        steps = [] if isinstance(node.gate, Constant) else [f"where {self._written(node.gate)[0]}"]
        return f"{node.recurrence.label.replace(' ', '_')}({', '.join([*inputs, *weight, *steps])})", _CALL

    def _applied(self, node: Map) -> _Written:
        name, (first, *others) = node.operation.name, node.operands
        if name in ("to_bool", "to_float32"):
            return self._written(first)
        if name == "take":
            return f"{self._bound(first, _CALL)}[{self._written(others[0])[0]}]", _CALL
        if name == "where":
            chosen, other = self._bound(others[0], 1), self._bound(others[1], 0)
            return f"{chosen} if {self._bound(first, 1)} else {other}", 0
        if name == "minimum" and is_operation(first, "maximum"):
            arguments = ", ".join(self._written(one)[0] for one in (*first.inputs, *others))
            return f"clip({arguments})", _CALL
        if not node.operation.symbol:
            arguments = ", ".join(self._written(one)[0] for one in node.operands)
            return f"{name.removesuffix('_present')}({arguments})", _CALL
        binding, symbol = _BINDING[name], _SYMBOLS.get(name, node.operation.symbol)
        if not others:
            return f"{symbol}{self._bound(first, binding)}", binding
        # Python would read a comparison of comparisons as a chain: a < b == c as a < b and b == c; and a ** b ** c as
        # a ** (b ** c).
        least = binding + 1 if binding in (_COMPARISON, _POWER) else binding
        return f"{self._bound(first, least)} {symbol} {self._bound(others[0], binding + 1)}", binding

    def _bound(self, node: Signal, least: int) -> str:
        """The text of an operand, in brackets if an operator of binding `least` would take it apart."""
        text, binding = self._written(node)
        return text if binding >= least else f"({text})"


def is_operation(node: Signal, name: str) -> bool:
    """True if a node applies the operation of this name."""
    return isinstance(node, Map) and node.operation.name == name


def _ema_weight(fold: Fold) -> list[float]:
    """The weight of the newest value in an average; see `kungfu.signal.fold.history.ema`."""
    if fold.recurrence.label != "ema" or not is_operation(grown := fold.recurrence.updates[-1], "add"):
        return []
    return [one.value for one in grown.inputs if isinstance(one, Constant)]
