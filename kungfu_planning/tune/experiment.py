"""The stages of parallel trials in a search, and two early-stopping methods that produce them."""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.errors import UsageError


@dataclass(frozen=True)
class Stage:
    """A rung: ``trials`` trials that each train for ``iterations`` more iterations and are then compared."""

    trials: int
    iterations: int

    def __post_init__(self) -> None:
        _at_least_one(self.trials, name="trials of a stage")
        _at_least_one(self.iterations, name="iterations of a stage")


@dataclass(frozen=True)
class Experiment:
    """The stages of a job, in order: the planner's input from an early-stopping method.

    Args:
        stages: the stages, with the work per trial that each stage *adds*, not totals.

    Raises:
        UsageError: There is no stage.

    Reference:
        Misra et al., 2021, figure 6.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise UsageError("an experiment has no stage; give at least one Stage(trials, iterations)")


def successive_halving(trials: int, *, least: int, most: int, eta: int) -> Experiment:
    """SHA(n, r, R, eta): after each stage, the best 1/eta of the trials continue with eta times the work.

    Stage i has ``n_i = floor(n / eta^i)`` trials, while this is at least 1, and adds ``r * eta^i`` iterations to
    each. The stage that would exceed R in total is cut to reach exactly R and is the last; otherwise the last stage
    gets all iterations that remain up to R. With a large n the search may therefore end with more than one trial.

    Args:
        trials: n, the trials of the first stage, at least 1.
        least: r, the iterations of the first stage, at least 1.
        most: R, the final iterations of a survivor, at least r.
        eta: the best 1/eta of the trials survive a stage; an integer of at least 2.

    Raises:
        UsageError: A value is out of range.

    >>> [stage.trials for stage in successive_halving(32, least=1, most=50, eta=3).stages]
    [32, 10, 3, 1]
    >>> [stage.iterations for stage in successive_halving(32, least=1, most=50, eta=3).stages]
    [1, 3, 9, 37]

    Reference:
        Jamieson and Talwalkar, 2016; the increments are from Misra et al., 2021, table 3.
    """
    _check_halving(trials, least=least, most=most, eta=eta)
    stages: list[Stage] = []
    done, survivors, work = 0, trials, least
    while survivors >= 1 and done < most:
        last = survivors // eta < 1 or done + work >= most
        added = most - done if last else work
        stages.append(Stage(survivors, added))
        done, survivors, work = done + added, survivors // eta, work * eta
    return Experiment(tuple(stages))


def hyperband(most: int, *, least: int, eta: int) -> tuple[Experiment, ...]:
    """Hyperband as successive halvings, one per bracket, the bracket with the most trials first.

    With ``s_max = floor(log_eta(R / r))``, bracket s (from s_max down to 0) starts
    ``ceil((s_max + 1) * eta^s / (s + 1))`` trials with ``floor(R / eta^s)`` iterations each.

    Args:
        most: R, the iterations of a survivor.
        least: r, from 1 to R.
        eta: the best 1/eta of the trials survive a stage; an integer of at least 2.

    Returns:
        One experiment per bracket. The experiments are independent jobs: in parallel their costs add up, and the
        experiment that ends last determines the time.

    Raises:
        UsageError: A value is out of range.

    >>> firsts = [bracket.stages[0] for bracket in hyperband(81, least=1, eta=3)]
    >>> [(stage.trials, stage.iterations) for stage in firsts]
    [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]

    Reference:
        Li et al., 2018, algorithm 1.
    """
    _check_halving(1, least=least, most=most, eta=eta)
    boldest = 0
    while least * eta ** (boldest + 1) <= most:
        boldest += 1
    return tuple(_bracket(s, boldest=boldest, most=most, eta=eta) for s in range(boldest, -1, -1))


def _bracket(s: int, *, boldest: int, most: int, eta: int) -> Experiment:
    trials = -(-(boldest + 1) * eta**s // (s + 1))
    return successive_halving(trials, least=most // eta**s, most=most, eta=eta)


def _check_halving(trials: int, *, least: int, most: int, eta: int) -> None:
    _at_least_one(trials, name="trials n")
    _at_least_one(least, name="least iterations r")
    if most < least:
        raise UsageError(f"most iterations R is {most}, below least iterations r = {least}; give R >= r")
    if eta < 2:
        raise UsageError(
            f"eta is {eta}: nothing would ever be dropped; give an integer of at least 2 (often 2, 3 or 4)"
        )


def _at_least_one(value: int, *, name: str) -> None:
    if value < 1:
        raise UsageError(f"{name} is {value}; give an integer of at least 1")
