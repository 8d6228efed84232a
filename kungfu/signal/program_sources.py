"""Signals of the user's program: values that its step publishes, or that it feeds between its steps.

Both are declared where a policy uses them, by a name that no signal of the step has. Policies that use one name must
declare it alike, so that one value can serve them all.
"""

from __future__ import annotations

from typing import get_args

from kungfu.errors import PolicyError
from kungfu.signal.fold import Fold, fold
from kungfu.signal.fold.fold import labelled
from kungfu.signal.node import Collective, Source, where
from kungfu.signal.operation import DType, SignalType
from kungfu.signal.sources import SOURCES, SourceKind


def published(name: str, *, dtype: DType, unit: str, meaning: str, owner: object) -> Source:
    """The source with the number that each peer publishes under this name; see `TrainingSignals.published`."""
    _check_name(name, method="published")
    if dtype not in get_args(DType):
        raise PolicyError(f"training.published({name!r}, dtype={dtype!r}): write one of {', '.join(get_args(DType))}")
    meaning = meaning or "published by the program in its step"
    kind = SourceKind(SignalType(dtype), "local", "before", unit, meaning, given_by="publish")
    return Source(name, owner, kind)


def fed(name: str, *, unit: str, meaning: str, owner: object) -> Fold:
    """The last number that rank 0 was fed under this name; see `TrainingSignals.fed`.

    What a peer was fed since the last message is a local source, NaN if that is nothing. Rank 0's rides on the next
    message, and a fold, which skips what is not finite, holds the last one: it goes along with the shared state.
    """
    _check_name(name, method="fed")
    meaning = meaning or "fed by the program between its steps"
    kind = SourceKind(
        SignalType("float32"), "local", "before", unit, f"{meaning}; NaN unless just fed", given_by="feed"
    )
    own = Source(name, owner, kind)
    carried = Collective("sum", where(Source("rank") == 0, own, 0.0))
    return labelled(fold(lambda _, newest: newest * 1.0, float("nan"), carried), label="last fed").named(name)


def misuse(declared: Source, what: str, *, policy: str, where: str = "") -> PolicyError:
    """The error for a call that does not fit what a policy says of a source.

    Args:
        declared: The source, which the program's step publishes or the program feeds.
        what: The error in the call, as the rest of a sentence that begins with it.
        policy: The name of a policy that uses the source.
        where: The user's ``file:line`` of the call; empty if a call is missing.
    """
    at = f" ({where})" if where else ""
    return PolicyError(
        f"training.{declared.kind.given_by}({declared.source!r}){at} {what}; policy {policy!r} declares it "
        f"({declared.origin})",
        policy=policy,
        origin=where or declared.origin,
    )


def _check_name(name: object, *, method: str) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise PolicyError(
            f"training.{method}({name!r}): takes a name of letters, digits and _ that begins with no digit, as in "
            f'training.{method}("accuracy")'
        )
    if name in SOURCES:
        raise PolicyError(
            f"training.{method}({name!r}): a step offers a signal of this name itself; use training.{name}, or give "
            f"yours another name"
        )
