"""The methods of a signal that create folds (signals with memory)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from kungfu.signal.fold import Fold, SizeStatistics, Window
    from kungfu.signal.node import Condition, OnRescale, Signal

F = TypeVar("F", bound=Callable[..., Any])

# The implementation of each method: a function of a signal and the method's options. Folds are signals, so the modules
# of folds import the module of signals, and register their functions here.
FOLDS: dict[str, Callable[..., Any]] = {}


def fold_method(function: F) -> F:
    """Registers a function as the implementation of the fold method with the same name."""
    FOLDS[function.__name__] = function
    return function


class FoldMethods:
    """The folds of one signal. A fold skips inputs that are not finite; with ``.sampled(n)`` it runs every n steps.

    A fold of an agreed signal (equal on all peers) is agreed, and is sent to a peer that joins; a fold of a local
    signal stays with its peer. On a rescale, `on_rescale` decides: "keep" the state, or "reset" it to its start. No
    fold costs a message.
    """

    def _fold(self, kind: str, **options: Any) -> Fold:
        made: Fold = FOLDS[kind](self, **options)
        return made

    def ema(self, decay: float, *, on_rescale: OnRescale = "keep") -> Fold:
        """The exponential moving average, corrected for its start: ``a += (d / w) (x - a)`` with ``w = (1 - d) w + d``.

        Here *a* is the average and *x* the newest value; *w* starts at 0. Float32, NaN until the first finite input.

        Args:
            decay: Weight of the newest value, the *d* of the formula, in (0, 1].
            on_rescale: "keep" or "reset".

        Raises:
            PolicyError: The decay is out of range.

        Cost:
            Two floats of state.
        """
        return self._fold("ema", decay=decay, on_rescale=on_rescale)

    def window(self, length: int, *, on_rescale: OnRescale = "keep") -> Window:
        """The last `length` finite values, oldest first: their mean, standard deviation, sum, median and extremes.

        The methods of the result are ``.mean()``, ``.std()``, ``.sum()``, ``.median()``, ``.min()`` and ``.max()``.

        The results of these methods are float32, cover the values seen so far, and are NaN before the first value.

        Args:
            length: Steps, from 1 to 10000.
            on_rescale: "keep" or "reset".

        Raises:
            PolicyError: The length is out of range.

        Cost:
            `length` floats of state.
        """
        return cast("Window", self._fold("window", length=length, on_rescale=on_rescale))

    def by_size(self, largest: int, *, decay: float = 1.0) -> Fold:
        """A table of this signal by cluster size: a vector whose entry *n* is the value seen with *n* peers.

        ``t[size] += decay (x - t[size])`` in every step with a finite value; the first value is stored unchanged. Gives
        a float32 vector of `largest` + 1 entries; an entry is NaN until a value was seen. For example,
        ``table[training.size - 1]`` is the entry for one peer fewer.

        Args:
            largest: The largest size that has an entry, in peers; larger sizes are not recorded.
            decay: Weight of the newest value, in (0, 1].

        Cost:
            One float of state per entry.

        On rescale:
            The table is kept.
        """
        return self._fold("by_size", largest=largest, decay=decay)

    def statistics_by_size(
        self, largest: int, *, forget_after: int | None = None, strike_all: Signal | None = None
    ) -> SizeStatistics:
        """Statistics of the samples by cluster size: ``count``, ``mean``, ``variance``, ``standard_error`` and ``age``.

        Each result is a vector whose entry *n* is for *n* peers. A sample x with n peers updates ``count += 1``, ``mean
        += (x - mean) / count``, and the variance by Welford's update. An entry is deleted, and starts again, when its
        size is reached with a new peer, by growth or by a replacement. For example, ``table.mean[training.size - 1]``
        is the mean with one peer fewer.

        Args:
            largest: The largest size that has an entry, in peers; larger sizes are not recorded.
            forget_after: Steps, at least 1, after which an entry without a new sample expires; ``None`` for never.
            strike_all: A bool signal; all entries are deleted in steps in which it is true.

        Raises:
            PolicyError: A number is out of range.

        Cost:
            20 bytes of state per entry, plus 16.

        On rescale:
            The table is kept.
        """
        made = self._fold("statistics_by_size", largest=largest, forget_after=forget_after, strike_all=strike_all)
        return cast("SizeStatistics", made)

    def previous(self, *, on_rescale: OnRescale = "keep") -> Fold:
        """The second newest finite value: float32, NaN until there are two. Cost: two floats of state."""
        return self._fold("previous", on_rescale=on_rescale)

    def delta(self, *, on_rescale: OnRescale = "keep") -> Fold:
        """The difference of the last two finite values: float32, NaN until there are two. Cost: two floats of state."""
        return self._fold("delta", on_rescale=on_rescale)

    def cumulative(self, *, on_rescale: OnRescale = "keep") -> Fold:
        """The sum of all finite values so far, from 0: int64 for int64, else float32 with compensated rounding.

        Cost: one whole number, or two floats, of state.
        """
        return self._fold("cumulative", on_rescale=on_rescale)

    def hold(
        self, every: int | None = None, *, when: Signal | Condition | None = None, on_rescale: OnRescale = "keep"
    ) -> Fold:
        """The last finite value seen in an `every`-th step, or while `when` is true: float32, NaN before the first.

        With `every`, or if `when` depends on step and size alone, this signal is computed only in the selected steps.

        Args:
            every: Steps between two values, at least 1.
            when: A bool signal or a trigger.
            on_rescale: "keep" or "reset".

        Raises:
            PolicyError: Not exactly one of `every` and `when` is given.

        Cost:
            One float of state.
        """
        return self._fold("hold", every=every, when=when, on_rescale=on_rescale)

    def rising(self, *, on_rescale: OnRescale = "keep") -> Fold:
        """True if a bool signal is true and was false in the previous step. Cost: two truth values of state."""
        return self._fold("rising", on_rescale=on_rescale)

    def count(self, *, on_rescale: OnRescale = "keep") -> Fold:
        """The number of steps in which a bool signal was true so far: int64. Cost: one whole number of state."""
        return self._fold("count", on_rescale=on_rescale)

    def streak(self, *, on_rescale: OnRescale = "keep") -> Fold:
        """The number of consecutive steps, up to this step, with a true bool signal: int64. Cost: one whole number."""
        return self._fold("streak", on_rescale=on_rescale)
