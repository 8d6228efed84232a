"""The `training` argument of a policy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from kungfu.errors import PolicyError
from kungfu.signal.node import Source
from kungfu.signal.sources import SOURCES

__all__ = ["TrainingSignals"]


# What is computed of what a step offers, by the names under which people look for it.
_MONITORS = {
    "noise_scale": "gradient_noise_scale",
    "gradient_noise": "gradient_noise_scale",
    "gns": "gradient_noise_scale",
    "variance": "gradient_variance",
    "samples_per_second": "throughput",
    "speed": "relative_speed",
    **{
        name: name
        for name in ("gradient_noise_scale", "gradient_variance", "throughput", "relative_speed", "stragglers")
    },
}
_OTHER_WORDS = {
    "lr": "learning_rate",
    "batch": "global_batch_size",
    "batch_size": "global_batch_size",
    "world_size": "size",
    "peers": "size",
    "workers": "size",
    "gradients": "grads",
    "mean_gradients": "mean_grads",
    "iteration": "step",
    "iterations": "step",
}


class TrainingSignals:
    """What a step offers to a policy, as attributes: the table is `kungfu.signal.SOURCES`.

    The signals belong to `job`, if one is given: no other job's policies may use them. Raises `PolicyError` for a name
    that no step offers.

    >>> TrainingSignals().local_batch_size.placement
    'agreed'
    """

    def __init__(self, *, job: object = None) -> None:
        self._job = job

    def __getattr__(self, name: str) -> Source:
        if name.startswith("__"):
            raise AttributeError(name)  # Python asks for such names of its own, to copy or to show an object
        if name not in SOURCES:
            raise PolicyError(
                f"{_meant(name)}a step offers no {name!r} to a policy; it offers {', '.join(sorted(SOURCES))}"
            )
        return Source(name, self._job)

    def __dir__(self) -> Iterable[str]:
        return sorted(SOURCES)


def _meant(name: str) -> str:
    """What somebody may have meant who asked for this name."""
    if name in _OTHER_WORDS:
        return f"write training.{_OTHER_WORDS[name]}: "
    close = get_close_matches(name, [*SOURCES, *_MONITORS], n=1, cutoff=0.75)
    if not close:
        return ""
    found = close[0]
    return f"write monitor.{_MONITORS[found]}(training): " if found in _MONITORS else f"write training.{found}: "
