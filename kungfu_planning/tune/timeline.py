"""A plan over time: the resources of each stage, and the GPUs of each trial."""

from __future__ import annotations

from dataclasses import dataclass

from kungfu_planning.tune.estimation import AllocationPlan, sample
from kungfu_planning.tune.sharing import assign, share
from kungfu_planning.tune.simulator import Simulator, stage_training, trial_times


@dataclass(frozen=True)
class StageUsage:
    """The resources of a stage of a plan; times are in seconds since the start.

    The provider has delivered ``instances`` at ``ready_s``; until then the previous stage's instances are held.
    """

    trials: int
    gpus: int
    gpus_per_trial: int
    instances: int
    start_s: float
    ready_s: float
    end_s: float


@dataclass(frozen=True)
class Box:
    """A trial's training in a stage of the first drawn run, on ``gpus`` GPUs, the first with number ``first_gpu``."""

    trial: int
    first_gpu: int
    gpus: int
    start_s: float
    end_s: float


def mean_stage_usage(simulator: Simulator, *, plan: AllocationPlan) -> tuple[StageUsage, ...]:
    """The resources and mean times of each stage of ``plan``; a stage begins at the end of the previous one."""
    return _usage(simulator, plan=plan, runs=slice(None))


def first_run_stage_usage(simulator: Simulator, *, plan: AllocationPlan) -> tuple[StageUsage, ...]:
    """The resources and times of each stage in the first drawn run, which `boxes` shows."""
    return _usage(simulator, plan=plan, runs=slice(1))


def _usage(simulator: Simulator, *, plan: AllocationPlan, runs: slice) -> tuple[StageUsage, ...]:
    drawn = sample(simulator, plan=plan)
    ready_s, ends_s = (times[:, runs].mean(axis=1).tolist() for times in (drawn.ready, drawn.ends))
    starts_s = [0.0, *ends_s]
    return tuple(
        StageUsage(
            trials=work.trials,
            gpus=gpus,
            gpus_per_trial=share(work, gpus=gpus).gpus_per_trial,
            instances=drawn.instances[stage],
            start_s=starts_s[stage],
            ready_s=ready_s[stage],
            end_s=ends_s[stage],
        )
        for stage, (work, gpus) in enumerate(zip(simulator.experiment.stages, plan, strict=True))
    )


def boxes(simulator: Simulator, *, plan: AllocationPlan) -> tuple[Box, ...]:
    """Each trial's training as a box of GPUs and time.

    After the last box on a GPU, the GPU is idle until the stage ends. The surviving trials are unknown in planning, and
    represented by the first trials.

    Args:
        simulator: the job and the cloud; its first drawn run is shown.
        plan: GPUs of each stage.

    Reference:
        Misra et al., 2021, figure 1.
    """
    drawn = sample(simulator, plan=plan)
    found: list[Box] = []
    for stage, gpus in enumerate(plan):
        shared = share(simulator.experiment.stages[stage], gpus=gpus)
        seconds = trial_times(simulator, stage=stage, gpus_per_trial=shared.gpus_per_trial)[:, 0].tolist()
        begun = _begin_s(simulator, stage=stage, gpus=gpus, end_s=float(drawn.ends[stage, 0]))
        found += _stage_boxes(seconds, chains=shared.at_once, width=shared.gpus_per_trial, begin_s=begun)
    return tuple(found)


def _begin_s(simulator: Simulator, *, stage: int, gpus: int, end_s: float) -> float:
    return end_s - float(stage_training(simulator, stage=stage, gpus=gpus).seconds[0])


def _stage_boxes(seconds: list[float], *, chains: int, width: int, begin_s: float) -> list[Box]:
    found: list[Box] = []
    free_chain = 0
    for trial, (duration, before) in enumerate(zip(seconds, assign(seconds, chains=chains), strict=True)):
        # The first trials begin chains of GPUs; every other trial follows the trial that it waited for.
        if before < 0:
            first_gpu, start_s, free_chain = free_chain, begin_s, free_chain + width
        else:
            first_gpu, start_s = found[before].first_gpu, found[before].end_s
        found.append(Box(trial, first_gpu, width, start_s, start_s + duration))
    return found
