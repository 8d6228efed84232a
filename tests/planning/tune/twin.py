"""A slow second simulator for searches without chance: one clock, one list of instances, nothing shared or cached."""

from __future__ import annotations

from kungfu_planning.tune import Simulator


def tell(simulator: Simulator, *, plan: tuple[int, ...]) -> tuple[float, float]:
    """Seconds and dollars."""
    cloud, node = simulator.cloud, simulator.cloud.instance.gpus
    now, provisioned, trained = 0.0, 0, 0.0
    alive: list[float] = []
    lives: list[float] = []
    for stage, gpus in zip(simulator.experiment.stages, plan, strict=True):
        needed = _needed(stage.trials, gpus=gpus, node=node, packing=cloud.packing)
        while len(alive) > needed:
            lives.append(now - alive.pop(0))
        if needed > len(alive):
            now += cloud.delays.scale.mean_s
            provisioned += needed - len(alive)
            alive += [now] * (needed - len(alive))
            now += cloud.delays.init.mean_s
        each = max(1, gpus // stage.trials)
        seconds = cloud.delays.startup.mean_s + stage.iterations * simulator.scaling.iteration(each).mean_s
        waves = 1 if gpus >= stage.trials else -(-stage.trials // gpus)
        now += waves * seconds + cloud.delays.sync.mean_s
        trained += stage.trials * each * seconds
    lives += [now - start for start in alive]
    held = sum(max(life, cloud.instance.minimum_s) for life in lives) * cloud.instance.dollars_per_s
    used = trained * cloud.instance.dollars_per_s / node
    data = provisioned * cloud.data.gigabytes * cloud.data.dollars_per_gb
    dollars = data + (held if cloud.billing == "instance" else used)
    return now, dollars


def _needed(trials: int, *, gpus: int, node: int, packing: str) -> int:
    if packing == "counted":
        return -(-gpus // node)
    each, running = (gpus // trials, trials) if gpus >= trials else (1, gpus)
    return -(-running // (node // each)) if each < node else running * -(-each // node)
